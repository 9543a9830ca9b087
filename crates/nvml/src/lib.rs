//! GPUs through NVML: reading, and setting apart from it.
