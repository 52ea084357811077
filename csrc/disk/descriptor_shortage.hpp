#pragma once
#include <string>

namespace gramary {

// Whether a call failed for lack of file descriptors: of the process (EMFILE), or of the machine
// (ENFILE).
bool is_descriptor_shortage(int error) noexcept;

// The limit that such a call met, in words.
std::string describe_descriptor_limit(int error);

}  // namespace gramary
