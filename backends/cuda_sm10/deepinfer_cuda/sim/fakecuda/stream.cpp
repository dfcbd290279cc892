// Streams and events. An event names its latest record: a wait takes the record that exists when it is called, as CUDA defines.
#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

Handle make_stream(Driver& d, unsigned flags, int priority) {
    if (flags > 1) fail(CUDA_ERROR_INVALID_VALUE, "stream flags must be 0 or 1");
    Handle context = d.current_handle(), h = d.add();
    auto s = std::make_unique<Stream>();
    s->context = context, s->flags = flags, s->priority = std::max(-5, std::min(priority, 0));
    s->sim = d.sim.make_stream(d.contexts[context]->sim);
    d.streams[h] = std::move(s);
    return h;
}

bool busy(Driver& d, const Stream& s) { return !d.sim.stream(d.live(s.context).sim, s.sim).work.empty(); }

void renew(Driver& d, Event& e, u64 context) {
    std::erase_if(e.earlier, [&](u64 old) { return d.sim.event(old).reached && (d.sim.release(old), true); });
    if (e.sim) e.earlier.push_back(e.sim);
    e.sim = d.sim.make_event(context);
}

void record(Driver& d, Handle event, Handle given) {
    Event& e = d.find(d.events, event, "event");
    Handle h = d.stream_handle(given);
    Stream& s = *d.streams[h];
    if (s.context != e.context) fail(CUDA_ERROR_INVALID_HANDLE, "event and stream belong to different contexts");
    e.captured = s.capture != nullptr;
    if (s.capture) {
        if (s.capture->invalid) fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture of this stream was invalidated by an earlier error");
        e.capture = s.capture, e.captured_stream = h;
        return;
    }
    d.submit(h, [&](Handle) {
        u64 context = d.live(e.context).sim;
        renew(d, e, context);
        d.sim.record(context, e.sim, s.sim);
    });
}

// A wait for an event of a capture makes the waiting stream part of it; the origin's wait joins the other's work.
void join(Driver& d, Event& e, Handle h) {
    Stream& s = *d.streams[h];
    auto capture = e.capture.lock();
    if (!capture) fail(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture that has ended");
    if (s.capture && s.capture != capture) fail(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the wait would merge two captures");
    if (!s.capture) {
        if (busy(d, s)) d.synchronize(h);
        s.capture = capture, capture->streams.insert(h), capture->unjoined.insert(h);
    }
    if (e.captured_stream != h) capture->unjoined.erase(e.captured_stream);
    if (h == capture->origin) return;
    capture->unjoined.insert(h);
}

Event& completed(Driver& d, Handle h) {
    Event& e = d.find(d.events, h, "event");
    if (e.captured) fail(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
    return e;
}

}  // namespace

FAKECUDA_API cuStreamCreate(Handle* stream, unsigned flags) {
    return guard(__func__, [&](Driver& d) { need(stream, "phStream"), *stream = make_stream(d, flags, 0); });
}

FAKECUDA_API cuStreamCreateWithPriority(Handle* stream, unsigned flags, int priority) {
    return guard(__func__, [&](Driver& d) { need(stream, "phStream"), *stream = make_stream(d, flags, priority); });
}

FAKECUDA_API cuStreamDestroy_v2(Handle stream) {
    return guard(__func__, [&](Driver& d) {
        Stream& s = d.find(d.streams, stream, "stream");
        if (s.capture) s.capture->invalid = true;
        try {
            d.sim.release(s.sim);
        } catch (const ptxsim::DriverError& e) {
            d.stick(d.live(s.context), fault_code(e.what()), e.what());
        }
        d.streams.erase(stream);
    });
}

FAKECUDA_API cuStreamSynchronize(Handle stream) {
    return guard(__func__, [&](Driver& d) { d.synchronize(d.stream_handle(stream)); });
}

FAKECUDA_API cuStreamQuery(Handle stream) {
    return guard(__func__, [&](Driver& d) {
        Stream& s = d.stream(stream);
        if (s.capture) fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that is being captured cannot be asked");
        if (busy(d, s)) fail(CUDA_ERROR_NOT_READY, "the stream has work left");
    });
}

FAKECUDA_API cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        if (flags > 1) fail(CUDA_ERROR_INVALID_VALUE, "flags must be 0 or 1");
        Event& e = d.find(d.events, event, "event");
        Handle h = d.stream_handle(stream);
        if (e.captured) return join(d, e, h);
        if (d.streams[h]->capture) fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a captured stream cannot wait for work outside the capture");
        if (e.sim) d.submit(h, [&](Handle) { d.sim.wait(d.live(d.streams[h]->context).sim, e.sim, d.streams[h]->sim); });
    });
}

FAKECUDA_API cuStreamGetCtx(Handle stream, Handle* context) {
    return guard(__func__, [&](Driver& d) { need(context, "pctx"), *context = d.stream(stream).context; });
}

FAKECUDA_API cuStreamGetCtx_v2(Handle stream, Handle* context, Handle* green) {
    return guard(__func__, [&](Driver& d) {
        need(context, "pCtx"), *context = d.stream(stream).context;
        if (green) *green = nullptr;
    });
}

FAKECUDA_API cuStreamGetFlags(Handle stream, unsigned* flags) {
    return guard(__func__, [&](Driver& d) { need(flags, "flags"), *flags = d.stream(stream).flags; });
}

FAKECUDA_API cuStreamGetPriority(Handle stream, int* priority) {
    return guard(__func__, [&](Driver& d) { need(priority, "priority"), *priority = d.stream(stream).priority; });
}

FAKECUDA_API cuStreamGetId(Handle stream, unsigned long long* id) {
    return guard(__func__, [&](Driver& d) { need(id, "streamId"), *id = u64(d.stream_handle(stream)); });
}

FAKECUDA_API cuStreamGetDevice(Handle stream, CUdevice* device) {
    return guard(__func__, [&](Driver& d) { need(device, "device"), *device = d.live(d.stream(stream).context).device; });
}

FAKECUDA_API cuStreamAddCallback(Handle stream, CUstreamCallback callback, void* data, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        need(reinterpret_cast<void*>(callback), "callback");
        if (flags) fail(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
        Handle h = d.stream_handle(stream);
        if (d.streams[h]->capture) fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "callbacks cannot be captured; use cuLaunchHostFunc");
        d.enqueue(h, [=] { callback(stream, CUDA_SUCCESS, data); });
    });
}

FAKECUDA_API cuEventCreate(Handle* event, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        need(event, "phEvent");
        if (flags > 3) fail(flags & 4 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE, "events between processes are not modelled, other flags are unknown");
        auto e = std::make_unique<Event>();
        e->context = d.current_handle(), e->flags = flags;
        d.events[*event = d.add()] = std::move(e);
    });
}

FAKECUDA_API cuEventDestroy_v2(Handle event) {
    return guard(__func__, [&](Driver& d) {
        Event& e = d.find(d.events, event, "event");
        if (e.sim) e.earlier.push_back(e.sim);
        for (u64 old : e.earlier) d.passed.push_back(old);
        d.events.erase(event);
    });
}

FAKECUDA_API cuEventRecord(Handle event, Handle stream) {
    return guard(__func__, [&](Driver& d) { record(d, event, stream); });
}

FAKECUDA_API cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        if (flags) fail(CUDA_ERROR_NOT_SUPPORTED, "external event records are not modelled");
        record(d, event, stream);
    });
}

FAKECUDA_API cuEventQuery(Handle event) {
    return guard(__func__, [&](Driver& d) {
        Event& e = completed(d, event);
        Context& c = d.live(e.context);
        if (c.error) fail(c.error, "a kernel of this context failed");
        if (e.sim && !d.sim.event(e.sim).reached) fail(CUDA_ERROR_NOT_READY, "the event is not reached");
    });
}

FAKECUDA_API cuEventSynchronize(Handle event) {
    return guard(__func__, [&](Driver& d) {
        Event& e = completed(d, event);
        Context& c = d.live(e.context);
        if (e.sim) d.sim.synchronize_event(e.sim);
        if (c.error) fail(c.error, "a kernel of this context failed");
    });
}

FAKECUDA_API cuEventElapsedTime_v2(float* milliseconds, Handle start, Handle stop) {
    return guard(__func__, [&](Driver& d) {
        need(milliseconds, "pMilliseconds");
        Event &a = completed(d, start), &b = completed(d, stop);
        if ((a.flags | b.flags) & 2) fail(CUDA_ERROR_INVALID_HANDLE, "an event was made without timing");
        if (!a.sim || !b.sim) fail(CUDA_ERROR_INVALID_HANDLE, "an event was never recorded");
        ptxsim::Event &x = d.sim.event(a.sim), &y = d.sim.event(b.sim);
        if (!x.reached || !y.reached) fail(CUDA_ERROR_NOT_READY, "an event is not reached");
        *milliseconds = float(y.when - x.when);  // host time of the simulation
    });
}

FAKECUDA_API cuEventElapsedTime(float* milliseconds, Handle start, Handle stop) { return cuEventElapsedTime_v2(milliseconds, start, stop); }
