"""`agentkv_lab ocr`: words read in pictures, by contrast and size, and the time of a page."""
