// Where the ranks of a group of NCCL meet: those of one process in its memory, those of several processes of
// one host in a folder, which `SOFTDEVICE_MEET` names.
#pragma once

#include "device.h"

namespace sd {

// What one rank brings to a collective.
struct Part {
    int32_t kind = 0, type = 0, root = 0;
    uint64_t count = 0;
    std::vector<char> bytes;
};
typedef std::map<int, Part> Parts;

struct Group {
    int world;
    explicit Group(int world) : world(world) {}
    virtual ~Group() {}
    virtual void join(int rank) = 0;
    // Whether all ranks have joined.
    virtual bool is_complete() = 0;
    // Whether the process of a rank is gone.
    virtual bool is_lost() = 0;
    virtual void give(uint64_t number, int rank, Part part) = 0;
    // What all ranks have brought; nothing as long as one of them is missing.
    virtual const Parts* parts(uint64_t number) = 0;
    // This rank has read all parts.
    virtual void done(uint64_t number, int rank) = 0;
};

// A name for a new group, which the ranks tell each other.
std::string new_group();
// The group of that name, or nothing where its ranks are in processes that cannot be met.
std::shared_ptr<Group> find_group(const std::string& name, int world);

}  // namespace sd
