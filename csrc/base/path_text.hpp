#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace gramary {

// A path, or text that holds one. In Python it is a str whose lone surrogates stand for the bytes
// that are not text (PEP 383), which std::string's own conversion refuses both ways.
struct PathText {
    std::string bytes;
};

}  // namespace gramary

template <>
struct nanobind::detail::type_caster<gramary::PathText> {
    NB_TYPE_CASTER(gramary::PathText, const_name("str"))

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        if (!PyUnicode_Check(source.ptr())) return false;
        const object encoded = steal(PyUnicode_EncodeFSDefault(source.ptr()));
        char* bytes = nullptr;
        Py_ssize_t size = 0;
        if (!encoded.is_valid() || PyBytes_AsStringAndSize(encoded.ptr(), &bytes, &size) != 0) {
            PyErr_Clear();
            return false;
        }
        value.bytes.assign(bytes, static_cast<std::size_t>(size));
        return true;
    }

    static handle from_cpp(const gramary::PathText& text, rv_policy, cleanup_list*) noexcept {
        return PyUnicode_DecodeFSDefaultAndSize(text.bytes.data(),
                                                static_cast<Py_ssize_t>(text.bytes.size()));
    }
};
