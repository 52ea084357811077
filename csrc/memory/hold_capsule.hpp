#pragma once
#include <nanobind/nanobind.h>

#include "memory/mapping.hpp"

namespace gramary {

// A hold as Python carries it: opaque, and let go when it is dropped.
inline nanobind::capsule capsule_of(Hold hold) {
    return nanobind::capsule(new Hold(std::move(hold)),
                             [](void* held) noexcept { delete static_cast<Hold*>(held); });
}

inline const Hold& hold_of(const nanobind::capsule& capsule) {
    return *static_cast<const Hold*>(capsule.data());
}

}  // namespace gramary
