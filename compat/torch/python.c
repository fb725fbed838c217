/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/python.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct python python;
struct torch torch;

struct name {
    const char *name;
    void *place; /* address of the pointer */
};

static const struct name pythons[] = {
    {"_Py_NoneStruct", &python.none},
    {"_Py_TrueStruct", &python.true_},
    {"PyBool_Type", &python.bool_},
    {"PyLong_Type", &python.int_},
    {"PyFloat_Type", &python.float_},
    {"PyUnicode_Type", &python.str},
    {"PyTuple_Type", &python.tuple},
    {"PyList_Type", &python.list},
    {"PyCapsule_Type", &python.capsule},
    {"Py_IncRef", &python.retain},
    {"Py_DecRef", &python.release},
    {"PyObject_Call", &python.call},
    {"PyErr_Occurred", &python.error},
    {"PyErr_Clear", &python.clear_error},
    {"PyTuple_New", &python.new_tuple},
    {"PyTuple_GetItem", &python.get_of_tuple},
    {"PyTuple_SetItem", &python.set_of_tuple},
    {"PyTuple_Size", &python.tuple_count},
    {"PyList_Size", &python.list_count},
    {"PyList_GetItem", &python.get_of_list},
    {"PyDict_Next", &python.dict_next},
    {"PyLong_AsLongLong", &python.to_int},
    {"PyLong_FromLongLong", &python.new_int},
    {"PyFloat_AsDouble", &python.to_float},
    {"PyUnicode_AsUTF8AndSize", &python.to_text},
    {"PyCapsule_New", &python.new_capsule},
    {"PyCapsule_GetPointer", &python.of_capsule},
    {"PyCFunction_NewEx", &python.new_function},
    {"PyCFunction_GetSelf", &python.self_of_function},
    {"PyEval_SaveThread", &python.unlock},
    {"PyEval_RestoreThread", &python.lock},
};

static const struct name torchs[] = {
    {"aoti_torch_get_dim", &torch.get_dim},
    {"aoti_torch_get_dtype", &torch.get_dtype},
    {"aoti_torch_get_sizes", &torch.get_sizes},
    {"aoti_torch_get_strides", &torch.get_strides},
    {"aoti_torch_get_device_type", &torch.get_device_type},
    {"aoti_torch_get_device_index", &torch.get_device_index},
    {"aoti_torch_get_layout", &torch.get_layout},
    {"aoti_torch_get_data_ptr", &torch.get_data},
};

static bool find(void *library, const struct name *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library, names[i].name);
        if (!address)
            return false;
        memcpy(names[i].place, &address, sizeof address); /* C has no conversion from object to function pointers */
    }
    return true;
}

bool python_find(void) {
    void *process = dlopen(NULL, RTLD_LAZY);
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return process && library && find(process, pythons, sizeof pythons / sizeof *pythons) &&
           find(library, torchs, sizeof torchs / sizeof *torchs);
}
