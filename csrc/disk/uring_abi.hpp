#pragma once
#include <cstddef>
#include <cstdint>

// What of io_uring's interface is used here, declared once more, so that a build needs neither
// liburing nor the headers of a new kernel: the running kernel alone decides. Source:
// io_uring_setup(2), io_uring_enter(2), io_uring_register(2) and the kernel's
// include/uapi/linux/io_uring.h. The interface is stable: members and flags are only ever added, in
// fields that are zero until then.
namespace gramary::uring_abi {

// The same on every architecture whose calls are numbered by asm-generic/unistd.h, and on x86.
constexpr long kSetupCall = 425;
constexpr long kEnterCall = 426;
constexpr long kRegisterCall = 427;

// Where the fields of the submission queue lie in its mapping, in bytes.
struct SubmissionOffsets {
    std::uint32_t head;
    std::uint32_t tail;
    std::uint32_t ring_mask;
    std::uint32_t ring_entries;
    std::uint32_t flags;
    std::uint32_t dropped;
    std::uint32_t array;
    std::uint32_t reserved;
    std::uint64_t user_address;
};

// Where the fields of the completion queue lie in its mapping, in bytes.
struct CompletionOffsets {
    std::uint32_t head;
    std::uint32_t tail;
    std::uint32_t ring_mask;
    std::uint32_t ring_entries;
    std::uint32_t overflow;
    std::uint32_t entries;
    std::uint32_t flags;
    std::uint32_t reserved;
    std::uint64_t user_address;
};

// Given to the set-up call with `flags` set, and filled by it.
struct SetupParameters {
    std::uint32_t num_submission_entries;
    std::uint32_t num_completion_entries;
    std::uint32_t flags;
    std::uint32_t poll_thread_cpu;
    std::uint32_t poll_thread_idle_ms;
    std::uint32_t features;
    std::uint32_t worker_fd;
    std::uint32_t reserved[3];
    SubmissionOffsets submission;
    CompletionOffsets completion;
};

// One operation to do. Unions of the kernel's declaration appear as the one member that reads use.
struct SubmissionEntry {
    std::uint8_t operation;
    std::uint8_t flags;
    std::uint16_t priority;
    std::int32_t fd;  // or the place in the registered files
    std::uint64_t offset;
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t read_flags;
    std::uint64_t user_data;
    std::uint16_t buffer_index;
    std::uint16_t personality;
    std::int32_t file_index;
    std::uint64_t reserved[2];
};

// What became of one.
struct CompletionEntry {
    std::uint64_t user_data;
    std::int32_t result;  // bytes, or an errno below 0
    std::uint32_t flags;
};

static_assert(sizeof(SubmissionOffsets) == 40 && sizeof(CompletionOffsets) == 40);
static_assert(sizeof(SetupParameters) == 120 && offsetof(SetupParameters, submission) == 40);
static_assert(sizeof(SubmissionEntry) == 64 && offsetof(SubmissionEntry, user_data) == 32 &&
              offsetof(SubmissionEntry, buffer_index) == 40);
static_assert(sizeof(CompletionEntry) == 16);

// SubmissionEntry::operation
constexpr std::uint8_t kReadFixed = 4;  // into registered memory; Linux 5.1
constexpr std::uint8_t kRead = 22;      // Linux 5.6
// SubmissionEntry::flags
constexpr std::uint8_t kFixedFile = 1u << 0;

// SetupParameters::flags
constexpr std::uint32_t kCooperativeTasks = 1u << 8;  // Linux 5.19
constexpr std::uint32_t kSingleIssuer = 1u << 12;     // Linux 6.0
constexpr std::uint32_t kDeferTasks = 1u << 13;       // Linux 6.1; only with kSingleIssuer
// SetupParameters::features
constexpr std::uint32_t kSingleMapping = 1u << 0;  // Linux 5.4

// Places to map at, in the ring's descriptor.
constexpr std::int64_t kSubmissionQueuePlace = 0;
constexpr std::int64_t kCompletionQueuePlace = 0x8000000;
constexpr std::int64_t kSubmissionEntriesPlace = 0x10000000;

// Flags of the enter call.
constexpr unsigned kGetEvents = 1u << 0;

// Operations of the register call.
constexpr unsigned kRegisterBuffers = 0;
constexpr unsigned kRegisterFiles = 2;

}  // namespace gramary::uring_abi
