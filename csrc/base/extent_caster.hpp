#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "base/extent.hpp"

// An extent of Python (`RowExtent` of src/gramary/native/rows.py), read by the names of its fields;
// the addresses of its source and of its counter come as integers. No object of ours is left to
// Python, which may keep a constant beyond the end of the module.
template <class Source>
struct nanobind::detail::type_caster<gramary::Extent<Source>> {
    NB_TYPE_CASTER(gramary::Extent<Source>, const_name("RowExtent"))

    bool from_python(handle extent, uint8_t, cleanup_list*) noexcept {
        static PyObject* const address_name = PyUnicode_InternFromString("address");
        static PyObject* const first_row_name = PyUnicode_InternFromString("first_row");
        static PyObject* const num_rows_name = PyUnicode_InternFromString("num_rows");
        static PyObject* const counter_name = PyUnicode_InternFromString("counter_address");
        std::int64_t address = 0;
        std::int64_t counter = 0;
        if (!read(extent, address_name, address) ||
            !read(extent, first_row_name, value.first_row) ||
            !read(extent, num_rows_name, value.num_rows) || !read(extent, counter_name, counter)) {
            PyErr_Clear();
            return false;
        }
        value.source = at<Source>(address);
        value.counter = at<gramary::RowCounter>(counter);
        return true;
    }

 private:
    template <class T>
    static T* at(std::int64_t address) noexcept {
        return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
    }
    static bool read(handle extent, PyObject* name, std::int64_t& number) noexcept {
        const object field = steal(PyObject_GetAttr(extent.ptr(), name));
        if (!field.is_valid()) return false;
        number = PyLong_AsLongLong(field.ptr());
        return number != -1 || PyErr_Occurred() == nullptr;
    }
};
