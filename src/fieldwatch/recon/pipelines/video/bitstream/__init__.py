"""Bitstream of a trained video model: quantization, range coding and checksum in a small file, and decoding."""

from .allocation import allocate_bits
from .codec import CodecOptions, DecodedBitstream, WrittenBitstream, breakdown, read_bitstream, write_bitstream
from .comparison import CompressedSizes, compare_compressors
from .container import BitstreamError
from .quantization import QuantizedTensor, quantize
from .rebuilding import StoredFrames, frame_codes, load_bitstream, model_config, rebuild

__all__ = [
    "BitstreamError",
    "CodecOptions",
    "CompressedSizes",
    "DecodedBitstream",
    "QuantizedTensor",
    "StoredFrames",
    "WrittenBitstream",
    "allocate_bits",
    "breakdown",
    "compare_compressors",
    "frame_codes",
    "load_bitstream",
    "model_config",
    "quantize",
    "read_bitstream",
    "rebuild",
    "write_bitstream",
]
