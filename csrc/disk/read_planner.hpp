#pragma once
#include <cstdint>
#include <vector>

#include "disk/block_plan.hpp"

namespace gramary {

// Groups sorted fragments into reads: each block once, neighbours together.
//
// A fragment that begins in a read that is full is cut where that read ends, so no block is read a
// second time for its sake. The planner keeps its memory for the next plan; it has no other state.
class ReadPlanner {
 public:
    // Replaces `reads`; cuts `fragments` where needed and leaves them in order.
    void plan(std::vector<Fragment>& fragments, const ReadRules& rules,
              std::vector<BlockRead>& reads);

 private:
    void place(const Fragment& fragment, std::vector<BlockRead>& reads);
    void begin_read(const Fragment& fragment, std::vector<BlockRead>& reads);
    void set_end(std::uint64_t end, BlockRead& read);

    ReadRules rules_;
    std::vector<Fragment> placed_;
    // What was cut off; all of them begin where the current read ends.
    std::vector<Fragment> tails_;
    std::uint64_t end_ = 0;    // of the current read
    std::uint64_t reach_ = 0;  // a fragment that begins below this joins it
};

}  // namespace gramary
