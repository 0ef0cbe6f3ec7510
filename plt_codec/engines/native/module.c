/* An empty Python module, which makes this a build product that pip knows and import finds. coder.py calls the
 * exported C functions through ctypes, which releases the GIL. */
#include <Python.h>

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled engine of the numeric contract; see coder.py.", 0, 0, 0, 0, 0, 0,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
