// Streams, events and graphs. All work is deferred until something waits for it.

#include "device.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

namespace sd {

typedef std::function<Result()> Run;

// A node of a graph, with the nodes that must run before it.
struct Node {
    const char* what;
    Run run;
    std::vector<size_t> after;
};

struct Graph {
    std::vector<Node> nodes;
};

// A capture that goes on. Streams that joined it share it.
struct Capture {
    Graph* graph;
    Stream* origin;
    std::thread::id thread;
    int mode;
    bool broken;
};

// A moment in a stream.
struct Moment {
    Stream* stream;
    bool passed;
    double milliseconds;
};

struct Event {
    std::shared_ptr<Moment> moment;
    std::shared_ptr<Capture> capture;
    std::vector<size_t> nodes;
    int polls = 0;
};

struct Stream {
    bool blocking;
    std::deque<Run> queue;
    std::shared_ptr<Capture> capture;
    // The nodes that the next captured one comes after.
    std::vector<size_t> last;
};

namespace {

Stream& null_stream() {
    static Stream& stream = *new Stream{true, {}, nullptr, {}};
    return stream;
}

std::set<Stream*>& streams() {
    static auto& all = *new std::set<Stream*>{&null_stream()};
    return all;
}

std::set<Event*>& events() {
    static auto& all = *new std::set<Event*>;
    return all;
}

Stream* find(void* handle) {
    if (!handle || handle == (void*)1 || handle == (void*)2) return &null_stream();
    auto found = streams().find((Stream*)handle);
    return found == streams().end() ? nullptr : *found;
}

Event* find_event(void* handle) {
    auto found = events().find((Event*)handle);
    return found == events().end() ? nullptr : *found;
}

double now() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count();
}

Result step(Stream* stream) {
    Run run = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (sticky) return sticky;
    return run();
}

Result drain(Stream* stream) {
    while (!stream->queue.empty())
        if (Result result = step(stream)) return result;
    return sticky;
}

Result reach(const std::shared_ptr<Moment>& moment) {
    while (!moment->passed && !moment->stream->queue.empty())
        if (Result result = step(moment->stream)) return result;
    return sticky;
}

std::shared_ptr<Moment> mark(Stream* stream) {
    auto moment = std::make_shared<Moment>(Moment{stream, false, 0});
    stream->queue.push_back([moment] {
        moment->passed = true;
        moment->milliseconds = now();
        return SUCCESS;
    });
    return moment;
}

// The default stream waits for all blocking streams and they for it.
void wait_for_default(Stream* stream) {
    if (stream == &null_stream()) {
        for (Stream* other : streams())
            if (other != stream && other->blocking && !other->queue.empty()) {
                auto moment = mark(other);
                stream->queue.push_back([moment] { return reach(moment); });
            }
    } else if (stream->blocking && !null_stream().queue.empty()) {
        auto moment = mark(&null_stream());
        stream->queue.push_back([moment] { return reach(moment); });
    }
}

Result break_capture(const std::shared_ptr<Capture>& capture, Result code, const std::string& why) {
    capture->broken = true;
    return fail(code, why);
}

void end_capture(const std::shared_ptr<Capture>& capture) {
    for (Stream* stream : streams())
        if (stream->capture == capture) {
            stream->capture = nullptr;
            stream->last.clear();
        }
}

void merge(std::vector<size_t>& into, const std::vector<size_t>& nodes) {
    for (size_t node : nodes)
        if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
}

// Runs the nodes of a graph in an order that its edges allow. With shuffling on, an edge that was
// forgotten shows.
Result run_graph(const Graph& graph) {
    std::vector<char> done(graph.nodes.size(), 0);
    for (size_t left = graph.nodes.size(); left > 0; left--) {
        std::vector<size_t> ready;
        for (size_t node = 0; node < graph.nodes.size(); node++) {
            if (done[node]) continue;
            bool free = true;
            for (size_t before : graph.nodes[node].after) free &= done[before] != 0;
            if (!free) continue;
            ready.push_back(node);
            if (settings().order == 0 || ready.size() > 16) break;
        }
        size_t pick = settings().order == 1 ? ready.size() - 1 : settings().order == 2 ? random() % ready.size() : 0;
        done[ready[pick]] = 1;
        if (Result result = graph.nodes[ready[pick]].run()) return result;
    }
    return SUCCESS;
}

}  // namespace

Result enqueue(void* handle, const char* what, Run run) {
    Stream* stream = find(handle);
    if (!stream) return fail(INVALID_HANDLE, "a stream that does not exist");
    if (stream->capture) {
        if (stream->capture->broken) return CAPTURE_INVALIDATED;
        Graph* graph = stream->capture->graph;
        graph->nodes.push_back({what, std::move(run), stream->last});
        stream->last = {graph->nodes.size() - 1};
        return SUCCESS;
    }
    wait_for_default(stream);
    stream->queue.push_back(std::move(run));
    return SUCCESS;
}

bool capturing(void* handle) {
    Stream* stream = find(handle);
    return stream && stream->capture;
}

Result refuse_in_capture(const char* name) {
    for (Stream* stream : streams()) {
        // Relaxed captures (mode 2) allow it; thread-local ones (1) forbid it to their own thread.
        if (!stream->capture || stream->capture->mode == 2) continue;
        if (stream->capture->mode == 1 && stream->capture->thread != std::this_thread::get_id()) continue;
        return break_capture(stream->capture, CAPTURE_UNSUPPORTED, std::string(name) + " during a capture");
    }
    return SUCCESS;
}

Result drain_stream(void* handle) {
    Stream* stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (settings().order)
        for (Stream* other : streams())
            if (other != stream)
                if (Result result = drain(other)) return result;
    if (Result result = drain(stream)) return result;
    return check_guards();
}

void count_busy_free() {
    for (Stream* stream : streams())
        if (!stream->queue.empty()) return count_up("frees_of_a_busy_device");
}

Result drain_all() {
    std::vector<Stream*> all(streams().begin(), streams().end());
    if (settings().order == 1) std::reverse(all.begin(), all.end());
    for (Stream* stream : all)
        if (Result result = drain(stream)) return result;
    return check_guards();
}

}  // namespace sd

using namespace sd;

SD_API Result cuStreamCreate(void** out, unsigned flags) {
    SD_ENTER("cuStreamCreate");
    if (!has_context()) return INVALID_CONTEXT;
    Stream* stream = new Stream{(flags & 1) == 0, {}, nullptr, {}};
    streams().insert(stream);
    *out = stream;
    return SUCCESS;
}

SD_API Result cuStreamCreateWithPriority(void** out, unsigned flags, int) { return cuStreamCreate(out, flags); }

SD_API Result cuStreamDestroy_v2(void* handle) {
    SD_ENTER("cuStreamDestroy_v2");
    Stream* stream = find(handle);
    if (!stream || stream == &null_stream()) return INVALID_HANDLE;
    Result result = drain(stream);
    // Moments may still name it, so its memory stays.
    streams().erase(stream);
    return result;
}

SD_API Result cuStreamSynchronize(void* handle) {
    SD_ENTER("cuStreamSynchronize");
    if (Result result = refuse_in_capture("cuStreamSynchronize")) return result;
    return drain_stream(handle);
}

SD_API Result cuStreamQuery(void* handle) {
    SD_ENTER("cuStreamQuery");
    Stream* stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return break_capture(stream->capture, CAPTURE_UNSUPPORTED, "cuStreamQuery during a capture");
    if (stream->queue.empty()) return SUCCESS;
    // Time passes for those who poll.
    if (Result result = step(stream)) return result;
    return NOT_READY;
}

SD_API Result cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    SD_ENTER("cuLaunchHostFunc");
    return enqueue(handle, "host function", [=] {
        function(data);
        return SUCCESS;
    });
}

SD_API Result cuCtxSynchronize() {
    SD_ENTER("cuCtxSynchronize");
    if (!has_context()) return INVALID_CONTEXT;
    if (Result result = refuse_in_capture("cuCtxSynchronize")) return result;
    return drain_all();
}

SD_API Result cuEventCreate(void** out, unsigned) {
    SD_ENTER("cuEventCreate");
    if (!has_context()) return INVALID_CONTEXT;
    Event* event = new Event;
    events().insert(event);
    *out = event;
    return SUCCESS;
}

SD_API Result cuEventDestroy_v2(void* handle) {
    SD_ENTER("cuEventDestroy_v2");
    Event* event = find_event(handle);
    if (!event) return INVALID_HANDLE;
    events().erase(event);
    delete event;
    return SUCCESS;
}

SD_API Result cuEventRecord(void* handle, void* stream_handle) {
    SD_ENTER("cuEventRecord");
    Event* event = find_event(handle);
    Stream* stream = find(stream_handle);
    if (!event || !stream) return INVALID_HANDLE;
    event->capture = stream->capture;
    event->nodes.clear();
    if (stream->capture) {
        event->nodes = stream->last;
        return SUCCESS;
    }
    wait_for_default(stream);
    event->moment = mark(stream);
    event->polls = 0;
    return SUCCESS;
}

SD_API Result cuEventRecordWithFlags(void* event, void* stream, unsigned) { return cuEventRecord(event, stream); }

SD_API Result cuStreamWaitEvent(void* stream_handle, void* handle, unsigned) {
    SD_ENTER("cuStreamWaitEvent");
    Event* event = find_event(handle);
    Stream* stream = find(stream_handle);
    if (!event || !stream) return INVALID_HANDLE;
    if (event->capture) {
        // The event is part of a capture, so the stream joins it.
        if (event->capture->graph == nullptr) return INVALID_VALUE;
        if (!stream->capture) {
            if (!stream->queue.empty() && stream->blocking)
                return break_capture(event->capture, CAPTURE_ISOLATION, "a stream with work joins a capture");
            stream->capture = event->capture;
        }
        if (stream->capture != event->capture)
            return break_capture(stream->capture, CAPTURE_ISOLATION, "two captures wait for each other");
        merge(stream->last, event->nodes);
        return SUCCESS;
    }
    if (stream->capture)
        return break_capture(stream->capture, CAPTURE_ISOLATION, "a capture waits for an event from outside of it");
    if (!event->moment) return SUCCESS;
    auto moment = event->moment;
    return enqueue(stream_handle, "wait", [moment] { return reach(moment); });
}

SD_API Result cuEventSynchronize(void* handle) {
    SD_ENTER("cuEventSynchronize");
    Event* event = find_event(handle);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return fail(CAPTURE_UNSUPPORTED, "cuEventSynchronize of an event in a capture");
    if (Result result = refuse_in_capture("cuEventSynchronize")) return result;
    if (!event->moment) return SUCCESS;
    if (Result result = reach(event->moment)) return result;
    return check_guards();
}

SD_API Result cuEventQuery(void* handle) {
    SD_ENTER("cuEventQuery");
    Event* event = find_event(handle);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return fail(CAPTURE_UNSUPPORTED, "cuEventQuery of an event in a capture");
    if (!event->moment || event->moment->passed) return SUCCESS;
    // Whoever polls finds it unfinished a few times.
    if (event->polls++ < 3) return NOT_READY;
    return reach(event->moment);
}

SD_API Result cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    SD_ENTER("cuEventElapsedTime_v2");
    Event *start = find_event(from), *end = find_event(to);
    if (!start || !end || !start->moment || !end->moment) return INVALID_HANDLE;
    if (!start->moment->passed || !end->moment->passed) return NOT_READY;
    *milliseconds = (float)(end->moment->milliseconds - start->moment->milliseconds);
    return SUCCESS;
}

SD_API Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

SD_API Result cuStreamBeginCapture_v2(void* handle, int mode) {
    SD_ENTER("cuStreamBeginCapture_v2");
    Stream* stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream == &null_stream()) return fail(CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
    if (stream->capture) return INVALID_VALUE;
    stream->capture = std::make_shared<Capture>(Capture{new Graph, stream, std::this_thread::get_id(), mode, false});
    stream->last.clear();
    return SUCCESS;
}

SD_API Result cuStreamEndCapture(void* handle, void** out) {
    SD_ENTER("cuStreamEndCapture");
    *out = nullptr;
    Stream* stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    auto capture = stream->capture;
    if (!capture) return INVALID_VALUE;
    if (capture->origin != stream) return break_capture(capture, CAPTURE_UNMATCHED, "a capture ends on another stream");
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id())
        return break_capture(capture, 908, "a capture ends in another thread");
    Graph* graph = capture->graph;
    capture->graph = nullptr;
    // Every node of another stream must lead to what this stream has waited for.
    std::vector<char> joined(graph->nodes.size(), 0);
    std::vector<size_t> left = stream->last;
    while (!left.empty()) {
        size_t node = left.back();
        left.pop_back();
        if (joined[node]) continue;
        joined[node] = 1;
        for (size_t before : graph->nodes[node].after) left.push_back(before);
    }
    bool all = std::find(joined.begin(), joined.end(), 0) == joined.end();
    bool broken = capture->broken;
    end_capture(capture);
    if (broken || !all) {
        delete graph;
        return broken ? CAPTURE_INVALIDATED : fail(CAPTURE_UNJOINED, "a stream that joined the capture was not waited for");
    }
    *out = graph;
    return SUCCESS;
}

SD_API Result cuStreamIsCapturing(void* handle, int* status) {
    SD_ENTER("cuStreamIsCapturing");
    Stream* stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    *status = !stream->capture ? 0 : stream->capture->broken ? 2 : 1;
    return SUCCESS;
}

SD_API Result cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
    SD_ENTER("cuGraphGetNodes");
    Graph* g = (Graph*)graph;
    if (nodes)
        for (size_t node = 0; node < *count && node < g->nodes.size(); node++) nodes[node] = &g->nodes[node];
    *count = g->nodes.size();
    return SUCCESS;
}

SD_API Result cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
    SD_ENTER("cuGraphInstantiateWithFlags");
    *out = new std::shared_ptr<Graph>(new Graph(*(Graph*)graph));
    return SUCCESS;
}

SD_API Result cuGraphUpload(void*, void*) {
    SD_ENTER("cuGraphUpload");
    return SUCCESS;
}

SD_API Result cuGraphLaunch(void* executable, void* stream) {
    SD_ENTER("cuGraphLaunch");
    std::shared_ptr<Graph> graph = *(std::shared_ptr<Graph>*)executable;
    return enqueue(stream, "graph", [graph] { return run_graph(*graph); });
}

SD_API Result cuGraphDestroy(void* graph) {
    SD_ENTER("cuGraphDestroy");
    delete (Graph*)graph;
    return SUCCESS;
}

SD_API Result cuGraphExecDestroy(void* executable) {
    SD_ENTER("cuGraphExecDestroy");
    // Launches that have not run yet hold on to the graph.
    delete (std::shared_ptr<Graph>*)executable;
    return SUCCESS;
}
