"""Parsing of the output of ``nsys stats --format=csv``."""

TOLD = """Generating SQLite file one.sqlite from one.nsys-rep
Processing [one.sqlite] with [/opt/nvidia/nsight-systems/2025.3/host-linux-x64/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,6000000,100,60000.0,60000,50000,70000,1000.0,"void splat<float, (int)3>(const float *, int)"
40.0,4000000,100,40000.0,40000,30000,50000,1000.0,adam [clone]

Processing [one.sqlite] with [/opt/nvidia/nsight-systems/2025.3/host-linux-x64/reports/cuda_gpu_mem_size_sum.py]...

 ** CUDA GPU MemOps Summary (by Size) (cuda_gpu_mem_size_sum):

Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
4000.5,2000,2.0,1.0,0.001,64.0,5.0,[CUDA memcpy Host-to-Device]

 ** NVTX Range Summary (nvtx_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
70.0,7000000,20,350000.0,350000,250000,450000,20000.0,PushPop,:render
30.0,3000000,20,150000.0,150000,100000,200000,20000.0,PushPop,:backward

 ** OS Runtime Summary (osrt_sum):

SKIPPED: one.sqlite does not contain OS Runtime trace data.
"""
