#include "disk/uring_supply.hpp"

namespace gramary {
namespace {

// A ring that breaks costs a batch time, and may leave memory to the kernel.
constexpr int kMaxBroken = 16;

}  // namespace

std::unique_ptr<UringRing> UringSupply::try_make(const UringRing::Options& options) {
    if (is_lost()) return nullptr;
    UringRefusal refusal;
    std::unique_ptr<UringRing> ring = UringRing::try_make(files_, options, stats_, refusal);
    if (ring == nullptr) note(refusal, !refusal.may_pass());
    return ring;
}

void UringSupply::note_broken(const UringRing& ring) {
    std::lock_guard lock(mutex_);
    refusal_ = ring.breakage();
    if (++num_broken_ >= kMaxBroken) is_lost_ = true;
}

UringRefusal UringSupply::refusal() const {
    std::lock_guard lock(mutex_);
    return refusal_;
}

void UringSupply::note(const UringRefusal& refusal, bool is_lost) {
    std::lock_guard lock(mutex_);
    refusal_ = refusal;
    if (is_lost) is_lost_ = true;
}

}  // namespace gramary
