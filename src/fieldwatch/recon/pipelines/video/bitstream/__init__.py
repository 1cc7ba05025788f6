"""A trained video model as one small file: quantise, range code, checksum; and back to a model that draws."""

from .allocation import allocate_bits
from .codec import CodecOptions, Decoded, Written, breakdown, read_bitstream, write_bitstream
from .comparison import Sizes, compare_compressors
from .container import BitstreamError
from .quantise import Quantised, quantise
from .rebuild import StoredFrames, frame_codes, load_bitstream, model_config, rebuild

__all__ = [
    "BitstreamError",
    "CodecOptions",
    "Decoded",
    "Quantised",
    "Sizes",
    "StoredFrames",
    "Written",
    "allocate_bits",
    "breakdown",
    "compare_compressors",
    "frame_codes",
    "load_bitstream",
    "model_config",
    "quantise",
    "read_bitstream",
    "rebuild",
    "write_bitstream",
]
