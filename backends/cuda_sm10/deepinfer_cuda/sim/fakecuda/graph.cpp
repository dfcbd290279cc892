// Stream capture and graphs. A captured node is the work itself, kept in issue order; a launch repeats the nodes in that order in
// one stream, which is one of the orders that the captured dependencies allow.
#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

Capture* capture_of(Driver& d, Handle stream) { return d.stream(stream).capture.get(); }

int status_of(const Capture* c) { return !c ? 0 : c->invalid ? 2 : 1; }

Handle instantiate(Driver& d, Handle graph, unsigned long long flags) {
    if (flags & ~0xfull) fail(CUDA_ERROR_INVALID_VALUE, "unknown instantiation flags");
    if (flags & 4) fail(CUDA_ERROR_NOT_SUPPORTED, "graphs that kernels launch are not modelled");
    Graph& g = d.find(d.graphs, graph, "graph");
    Handle h = d.add();
    d.executables[h] = std::make_unique<Graph>(g);
    return h;
}

}  // namespace

FAKECUDA_API cuStreamBeginCapture_v2(Handle stream, int mode) {
    return guard(__func__, [&](Driver& d) {
        if (mode < 0 || mode > 2) fail(CUDA_ERROR_INVALID_VALUE, "capture mode must be 0, 1 or 2");
        Handle h = d.stream_handle(stream);
        Stream& s = *d.streams[h];
        if (h == d.live(s.context).legacy) fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
        if (s.capture) fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is being captured already");
        s.capture = std::make_shared<Capture>();
        s.capture->id = ++d.captures, s.capture->mode = mode, s.capture->origin = h;
        s.capture->streams.insert(h);
    });
}

FAKECUDA_API cuStreamEndCapture(Handle stream, Handle* graph) {
    return guard(__func__, [&](Driver& d) {
        need(graph, "phGraph"), *graph = nullptr;
        Handle h = d.stream_handle(stream);
        auto capture = d.streams[h]->capture;
        if (!capture) fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is not being captured");
        if (capture->origin != h) fail(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream");
        for (Handle joined : capture->streams)
            if (d.streams.count(joined)) d.streams[joined]->capture = nullptr;
        if (capture->invalid) fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated by an earlier error");
        if (!capture->unjoined.empty()) fail(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, std::to_string(capture->unjoined.size()) + " streams have captured work that the first stream does not wait for");
        d.graphs[*graph = d.add()] = std::make_unique<Graph>(Graph{std::move(capture->nodes)});
    });
}

FAKECUDA_API cuStreamIsCapturing(Handle stream, int* status) {
    return guard(__func__, [&](Driver& d) { need(status, "captureStatus"), *status = status_of(capture_of(d, stream)); });
}

FAKECUDA_API cuStreamGetCaptureInfo_v2(Handle stream, int* status, u64* id, Handle* graph, const Handle** dependencies, size_t* count) {
    return guard(__func__, [&](Driver& d) {
        need(status, "captureStatus_out");
        Capture* c = capture_of(d, stream);
        *status = status_of(c);
        if (id) *id = c ? c->id : 0;
        if (graph) *graph = nullptr;
        if (dependencies) *dependencies = nullptr;
        if (count) *count = 0;
    });
}

FAKECUDA_API cuStreamGetCaptureInfo_v3(Handle stream, int* status, u64* id, Handle* graph, const Handle** dependencies, const void** edges, size_t* count) {
    if (edges) *edges = nullptr;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

FAKECUDA_API cuThreadExchangeStreamCaptureMode(int* mode) {
    return guard(__func__, [&](Driver&) {
        thread_local int own = 0;
        need(mode, "mode");
        if (*mode < 0 || *mode > 2) fail(CUDA_ERROR_INVALID_VALUE, "capture mode must be 0, 1 or 2");
        std::swap(own, *mode);
    });
}

FAKECUDA_API cuGraphCreate(Handle* graph, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        need(graph, "phGraph");
        if (flags) fail(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
        d.graphs[*graph = d.add()] = std::make_unique<Graph>();
    });
}

FAKECUDA_API cuGraphDestroy(Handle graph) {
    return guard(__func__, [&](Driver& d) { d.find(d.graphs, graph, "graph"), d.graphs.erase(graph); });
}

// Nodes have no handles of their own: only their number is told.
FAKECUDA_API cuGraphGetNodes(Handle graph, Handle* nodes, size_t* count) {
    return guard(__func__, [&](Driver& d) {
        need(count, "numNodes");
        if (nodes) fail(CUDA_ERROR_NOT_SUPPORTED, "nodes of a graph cannot be looked into");
        *count = d.find(d.graphs, graph, "graph").nodes.size();
    });
}

FAKECUDA_API cuGraphInstantiateWithFlags(Handle* executable, Handle graph, unsigned long long flags) {
    return guard(__func__, [&](Driver& d) { need(executable, "phGraphExec"), *executable = instantiate(d, graph, flags); });
}

FAKECUDA_API cuGraphInstantiateWithParams(Handle* executable, Handle graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return guard(__func__, [&](Driver& d) {
        need(executable, "phGraphExec"), need(parameters, "instantiateParams");
        parameters->result = 1, parameters->error_node = nullptr;
        *executable = instantiate(d, graph, parameters->flags);
        parameters->result = 0;
    });
}

FAKECUDA_API cuGraphUpload(Handle executable, Handle stream) {
    return guard(__func__, [&](Driver& d) { d.find(d.executables, executable, "executable graph"), d.stream_handle(stream); });
}

FAKECUDA_API cuGraphLaunch(Handle executable, Handle stream) {
    return guard(__func__, [&](Driver& d) {
        Graph& g = d.find(d.executables, executable, "executable graph");
        d.submit(d.stream_handle(stream), [nodes = g.nodes](Handle h) {
            for (auto& n : nodes) n(h);
        });
    });
}

FAKECUDA_API cuGraphExecDestroy(Handle executable) {
    return guard(__func__, [&](Driver& d) { d.find(d.executables, executable, "executable graph"), d.executables.erase(executable); });
}
