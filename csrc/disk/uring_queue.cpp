#include "disk/uring_queue.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gramary {

using namespace uring_abi;

int UringQueue::open(unsigned num_entries, bool single_issuer) {
    SetupParameters parameters{};
    failed_call_ = "io_uring_setup";
    if (const int error = set_up(num_entries, single_issuer, parameters)) return error;
    failed_call_ = "mapping the queues of io_uring";
    if (const int error = map_queues(parameters)) return error;
    find_fields(parameters);
    return 0;
}

int UringQueue::set_up(unsigned num_entries, bool single_issuer, SetupParameters& parameters) {
    constexpr std::uint32_t kSteps[] = {kSingleIssuer | kDeferTasks,
                                        kSingleIssuer | kCooperativeTasks, kCooperativeTasks, 0};
    int error = EINVAL;
    for (const std::uint32_t flags : kSteps) {
        if ((flags & kSingleIssuer) != 0 && !single_issuer) continue;
        parameters = {};
        parameters.flags = flags;
        fd_ = FileDescriptor(static_cast<int>(::syscall(kSetupCall, num_entries, &parameters)));
        if (fd_) return 0;
        error = errno;
        if (error != EINVAL) break;  // not a question of flags
    }
    return error;
}

int UringQueue::map_queues(const SetupParameters& parameters) {
    const SubmissionOffsets& submission = parameters.submission;
    const CompletionOffsets& completion = parameters.completion;
    std::size_t submission_bytes =
        submission.array + parameters.num_submission_entries * sizeof(unsigned);
    const std::size_t completion_bytes =
        completion.entries + parameters.num_completion_entries * sizeof(CompletionEntry);
    const bool is_single = (parameters.features & kSingleMapping) != 0;
    if (is_single) submission_bytes = std::max(submission_bytes, completion_bytes);
    int error = submission_queue_.map(fd_.get(), kSubmissionQueuePlace, submission_bytes);
    if (error == 0 && !is_single) {
        error = completion_queue_.map(fd_.get(), kCompletionQueuePlace, completion_bytes);
    }
    if (error != 0) return error;
    return submission_entries_.map(fd_.get(), kSubmissionEntriesPlace,
                                   parameters.num_submission_entries * sizeof(SubmissionEntry));
}

void UringQueue::find_fields(const SetupParameters& parameters) {
    const SubmissionOffsets& submission = parameters.submission;
    const CompletionOffsets& completion = parameters.completion;
    std::uint8_t* const submissions = submission_queue_.data();
    std::uint8_t* const completions =
        completion_queue_.data() != nullptr ? completion_queue_.data() : submissions;
    const auto field = [](std::uint8_t* queue, std::uint32_t offset) {
        return reinterpret_cast<unsigned*>(queue + offset);
    };
    submission_head_ = field(submissions, submission.head);
    submission_tail_ = field(submissions, submission.tail);
    submission_mask_ = *field(submissions, submission.ring_mask);
    completion_head_ = field(completions, completion.head);
    completion_tail_ = field(completions, completion.tail);
    completion_mask_ = *field(completions, completion.ring_mask);
    entries_ = reinterpret_cast<SubmissionEntry*>(submission_entries_.data());
    completions_ =
        reinterpret_cast<const CompletionEntry*>(completions + parameters.completion.entries);
    tail_ = *submission_tail_;
    // The queue holds places of entries. Here each place holds the entry of its own number, always.
    unsigned* const places = field(submissions, submission.array);
    for (unsigned i = 0; i <= submission_mask_; ++i) places[i] = i;
}

int UringQueue::register_buffer(const UringMapping& memory) {
    const iovec piece{memory.data(), memory.num_bytes()};
    has_fixed_buffer_ = ::syscall(kRegisterCall, fd_.get(), kRegisterBuffers, &piece, 1u) >= 0;
    return has_fixed_buffer_ ? 0 : errno;
}

int UringQueue::register_files(std::span<const int> fds) {
    const auto count = static_cast<unsigned>(fds.size());
    has_fixed_files_ = ::syscall(kRegisterCall, fd_.get(), kRegisterFiles, fds.data(), count) >= 0;
    return has_fixed_files_ ? 0 : errno;
}

int UringQueue::enter(unsigned num_awaited) noexcept {
    store(submission_tail_, tail_);
    return call_enter(num_prepared(), num_awaited);
}

int UringQueue::collect() noexcept { return call_enter(0, 0); }

int UringQueue::call_enter(unsigned num_submitted, unsigned num_awaited) noexcept {
    const long result = ::syscall(kEnterCall, fd_.get(), num_submitted, num_awaited, kGetEvents,
                                  nullptr, std::size_t{0});
    return result < 0 ? -errno : static_cast<int>(result);
}

}  // namespace gramary
