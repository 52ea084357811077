#pragma once
#include <Python.h>
#include <unistd.h>

namespace gramary {

// Lets go of the interpreter lock for a block; also as a call guard of a binding.
//
// A daemon thread that comes back while the interpreter ends never gets the lock again. Python
// before 3.14 ends such a thread by unwinding its stack, and unwinding into C++ ends the process
// (std::terminate). So the thread is caught here and stands still, as it does in Python 3.14; the
// process ends around it.
class Unlocked {
 public:
    Unlocked() noexcept : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            // Leaving this block without throwing on would end the process too.
            for (;;) pause();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

 private:
    PyThreadState* state_;
};

}  // namespace gramary
