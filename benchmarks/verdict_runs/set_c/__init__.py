"""Set c: faults, models, data and loops that sets a and b do not have. It judges rules; do not tune them on it."""
