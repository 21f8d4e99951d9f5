#include "meeting.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace sd {

namespace {

// Ranks are threads of this process.
struct Here : Group {
    struct Meeting {
        Parts parts;
        int done = 0;
    };
    int joined = 0;
    std::map<uint64_t, Meeting> meetings;

    explicit Here(int world) : Group(world) {}
    void join(int) override { joined++; }
    bool is_complete() override { return joined >= world; }
    bool is_lost() override { return false; }
    void give(uint64_t number, int rank, Part part) override { meetings[number].parts[rank] = std::move(part); }
    const Parts* parts(uint64_t number) override {
        Meeting& meeting = meetings[number];
        return (int)meeting.parts.size() < world ? nullptr : &meeting.parts;
    }
    void done(uint64_t number, int) override {
        if (++meetings[number].done == world) meetings.erase(number);
    }
};

// Ranks are processes. A rank that brings a part writes a file, `NUMBER.RANK`, which is whole as soon as it has
// that name. Collectives have an order: whoever has all parts of one knows that all ranks are done with the one before.
struct Elsewhere : Group {
    std::string folder;
    std::map<uint64_t, Parts> read;

    Elsewhere(int world, std::string folder) : Group(world), folder(std::move(folder)) {
        mkdir(this->folder.c_str(), 0777);
    }
    std::string path(uint64_t number, int rank) const {
        return folder + "/" + std::to_string(number) + "." + std::to_string(rank);
    }
    void join(int rank) override {
        Part part;
        part.count = (uint64_t)getpid();
        give(0, rank, std::move(part));
    }
    bool is_complete() override { return parts(0); }
    bool is_lost() override {
        parts(0);
        for (auto& entry : read[0])
            if (kill((pid_t)entry.second.count, 0) && errno == ESRCH) return true;
        return false;
    }
    void give(uint64_t number, int rank, Part part) override {
        std::string to = path(number, rank), unfinished = to + ".new";
        FILE* file = fopen(unfinished.c_str(), "wb");
        bool written = file && fwrite(&part.kind, sizeof part.kind, 1, file) == 1 && fwrite(&part.type, sizeof part.type, 1, file) == 1 &&
                       fwrite(&part.root, sizeof part.root, 1, file) == 1 && fwrite(&part.count, sizeof part.count, 1, file) == 1 &&
                       fwrite(part.bytes.data(), 1, part.bytes.size(), file) == part.bytes.size();
        if (file) written &= fclose(file) == 0;
        if (!written || rename(unfinished.c_str(), to.c_str())) fail_for_good(LAUNCH_FAILED, "a part of a collective cannot be written");
    }
    const Parts* parts(uint64_t number) override {
        Parts& all = read[number];
        for (int rank = 0; rank < world; rank++) {
            if (all.count(rank)) continue;
            FILE* file = fopen(path(number, rank).c_str(), "rb");
            if (!file) return nullptr;
            Part part;
            bool whole = fread(&part.kind, sizeof part.kind, 1, file) == 1 && fread(&part.type, sizeof part.type, 1, file) == 1 &&
                         fread(&part.root, sizeof part.root, 1, file) == 1 && fread(&part.count, sizeof part.count, 1, file) == 1;
            char some[65536];
            while (size_t got = fread(some, 1, sizeof some, file)) part.bytes.insert(part.bytes.end(), some, some + got);
            fclose(file);
            if (!whole) return fail_for_good(LAUNCH_FAILED, "a part of a collective cannot be read"), nullptr;
            all[rank] = std::move(part);
        }
        return &all;
    }
    void done(uint64_t number, int rank) override {
        read.erase(number);
        if (number > 1) unlink(path(number - 1, rank).c_str());
    }
};

std::map<std::string, std::shared_ptr<Group>>& groups() {
    static auto& all = *new std::map<std::string, std::shared_ptr<Group>>;
    return all;
}

}  // namespace

std::string new_group() { return std::to_string(getpid()) + "-" + std::to_string(count("ncclGetUniqueId")); }

std::shared_ptr<Group> find_group(const std::string& name, int world) {
    auto& group = groups()[name];
    if (group) return group;
    const char* meet = getenv("SOFTDEVICE_MEET");
    if (meet && *meet)
        group = std::make_shared<Elsewhere>(world, std::string(meet) + "/" + name);
    else if (atoi(name.c_str()) == (int)getpid())
        group = std::make_shared<Here>(world);
    return group;
}

}  // namespace sd
