"""libcudnn.so.9 and its sub-libraries, computed by Weft, in the folder lib, and their headers in the folder
include. `import weft.dropin` loads the library, and `python -m weft cudnn run` preloads it."""
