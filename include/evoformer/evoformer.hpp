/** @file
 * evoformer.hpp: the C API for C++17: handles that free themselves, and exceptions in place of statuses. Descriptors,
 * weights and arguments are C's own structs; whatever has no method here is called as in C, within check().
 *
 * Handles are move-only; one that was moved from may be assigned to or destroyed, no more. Memory, streams, events and
 * graphs keep their context alive, so the order of destruction is free, but for what the C API says of work that still
 * runs.
 */
#ifndef EVOFORMER_EVOFORMER_HPP
#define EVOFORMER_EVOFORMER_HPP

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "evoformer/evoformer.h"

/** All of the C++ wrapper. */
namespace evoformer {

/** A status other than EVO_OK; what() has its name and the text of evo_last_error(). */
class error : public std::runtime_error {
  public:
    /** Takes this thread's text, so it is made right after the call that failed. */
    explicit error(evo_status status)
        : std::runtime_error(std::string(evo_status_name(status)) + ": " + evo_last_error()), status_(status) {
    }

    /** What the C function returned. */
    evo_status status() const noexcept {
        return status_;
    }

  private:
    evo_status status_;
};

/** Throws evoformer::error unless the status is EVO_OK. */
inline void check(evo_status status) {
    if (status != EVO_OK) throw error(status);
}

/** An open device: evo_context. Thread-safe, as its handle is. */
class context {
  public:
    /** Opens a device by name: "cpu", "cuda:0", "auto". @throws error */
    explicit context(const std::string &device, const evo_context_options *options = nullptr) {
        evo_context *handle = nullptr;
        check(evo_context_create(device.c_str(), options, &handle));
        handle_ = std::shared_ptr<evo_context>(handle, evo_context_destroy);
    }
    /** Takes the other's device. */
    context(context &&) = default;
    /** Takes the other's device. */
    context &operator=(context &&) = default;
    context(const context &) = delete;
    context &operator=(const context &) = delete;

    /** The handle; it stays this object's. */
    evo_context *get() const noexcept {
        return handle_.get();
    }

    /** Describes the device. @throws error */
    evo_device_info device() const {
        evo_device_info info = EVO_DEVICE_INFO_INIT;
        check(evo_context_device(get(), &info));
        return info;
    }

    /** Copies bytes in stream order between any two of host and device; as evo_memory_copy. @throws error */
    void copy(void *target, const void *source, std::size_t bytes, evo_stream stream = nullptr) const {
        check(evo_memory_copy(get(), target, source, bytes, stream));
    }

    /** Sets every byte of device memory, in stream order; as evo_memory_fill. @throws error */
    void fill(void *target, int value, std::size_t bytes, evo_stream stream = nullptr) const {
        check(evo_memory_fill(get(), target, value, bytes, stream));
    }

    /** Returns when all work of the stream is done. @throws error, also of that work */
    void synchronize(evo_stream stream = nullptr) const {
        check(evo_stream_synchronize(get(), stream));
    }

  private:
    friend class memory;
    friend class stream;
    friend class event;
    friend class graph;
    std::shared_ptr<evo_context> handle_;
};

/** All devices of this machine that this library can open, in the order that "auto" prefers. */
inline std::vector<evo_device_info> devices() {
    std::vector<evo_device_info> found;
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    while (evo_device_get(static_cast<int>(found.size()), &info) == EVO_OK) found.push_back(info);
    return found;
}

/** Device memory of evo_memory_alloc, aligned for every use. */
class memory {
  public:
    /** Allocates; 0 bytes give nullptr. @throws error */
    memory(const context &context, std::size_t bytes) : handle_(nullptr, release{ context.handle_ }), size_(bytes) {
        void *address = nullptr;
        check(evo_memory_alloc(context.get(), bytes, &address));
        handle_.reset(address);
    }

    /** The address on the device. */
    void *data() const noexcept {
        return handle_.get();
    }
    /** Bytes. */
    std::size_t size() const noexcept {
        return size_;
    }

  private:
    struct release {
        std::shared_ptr<evo_context> context;
        void operator()(void *address) const noexcept {
            evo_memory_free(context.get(), address);
        }
    };
    std::unique_ptr<void, release> handle_;
    std::size_t size_;
};

/** A queue of work in order: evo_stream. Converts to it, as do the streams of CUDA and HIP. */
class stream {
  public:
    /** Makes a stream of the context's device. @throws error */
    explicit stream(const context &context) : handle_(nullptr, release{ context.handle_ }) {
        evo_stream handle = nullptr;
        check(evo_stream_create(context.get(), &handle));
        handle_.reset(handle);
    }

    /** The handle; it stays this object's. */
    operator evo_stream() const noexcept {
        return handle_.get();
    }

    /** Returns when all work of the stream is done. @throws error, also of that work */
    void synchronize() const {
        check(evo_stream_synchronize(handle_.get_deleter().context.get(), *this));
    }

    /** Work given to the stream from now on starts after the event's last record. @throws error */
    void wait(evo_event event) const {
        check(evo_stream_wait_event(handle_.get_deleter().context.get(), *this, event));
    }

  private:
    struct release {
        std::shared_ptr<evo_context> context;
        void operator()(void *handle) const noexcept {
            evo_stream_destroy(context.get(), handle);
        }
    };
    std::unique_ptr<void, release> handle_;
};

/** A point in a stream: evo_event. Converts to it. */
class event {
  public:
    /** Makes an event, recorded nowhere yet. @throws error */
    explicit event(const context &context) : handle_(nullptr, release{ context.handle_ }) {
        evo_event handle = nullptr;
        check(evo_event_create(context.get(), &handle));
        handle_.reset(handle);
    }

    /** The handle; it stays this object's. */
    operator evo_event() const noexcept {
        return handle_.get();
    }

    /** Stands for all work given to the stream so far from now on. @throws error */
    void record(evo_stream stream = nullptr) const {
        check(evo_event_record(handle_.get_deleter().context.get(), *this, stream));
    }

    /** Returns when the work before the last record is done. @throws error */
    void synchronize() const {
        check(evo_event_synchronize(handle_.get_deleter().context.get(), *this));
    }

    /** Milliseconds from an earlier event to this one, both completed. @throws error */
    double since(evo_event start) const {
        double milliseconds = 0;
        check(evo_event_elapsed(handle_.get_deleter().context.get(), start, *this, &milliseconds));
        return milliseconds;
    }

  private:
    struct release {
        std::shared_ptr<evo_context> context;
        void operator()(void *handle) const noexcept {
            evo_event_destroy(context.get(), handle);
        }
    };
    std::unique_ptr<void, release> handle_;
};

/** Recorded work, ready to launch: evo_graph. */
class graph {
  public:
    /** Records what `work()` gives to the stream, which is not the default one. @throws error, and what `work` throws */
    template <class Work>
    graph(const context &context, evo_stream stream, Work &&work) : handle_(nullptr, release{ context.handle_ }) {
        evo_graph handle = nullptr;
        check(evo_graph_begin(context.get(), stream));
        try {
            std::forward<Work>(work)();
        } catch (...) {
            if (evo_graph_end(context.get(), stream, &handle) == EVO_OK) handle_.reset(handle); // freed on the way out
            throw;
        }
        check(evo_graph_end(context.get(), stream, &handle));
        handle_.reset(handle);
    }

    /** Runs the recorded work once, in stream order; as evo_graph_launch. @throws error */
    void launch(evo_stream stream) const {
        check(evo_graph_launch(handle_.get_deleter().context.get(), handle_.get(), stream));
    }

  private:
    struct release {
        std::shared_ptr<evo_context> context;
        void operator()(void *handle) const noexcept {
            evo_graph_destroy(context.get(), handle);
        }
    };
    std::unique_ptr<void, release> handle_;
};

class plan;

/** Packed weights: evo_pack. Their memory stays the caller's and must outlive every use. */
class pack {
  public:
    /** Packs the weights into `memory`, in stream order; as evo_opm_pack_weights. @throws error */
    inline pack(const plan &plan, const evo_opm_weights &weights, void *memory, std::size_t memory_size,
                evo_stream stream = nullptr);
    /** Packs the weights into `memory`, in stream order; as evo_trimul_pack_weights. @throws error */
    inline pack(const plan &plan, const evo_trimul_weights &weights, void *memory, std::size_t memory_size,
                evo_stream stream = nullptr);

    /** The handle; it stays this object's. */
    evo_pack *get() const noexcept {
        return handle_.get();
    }

  private:
    struct release {
        void operator()(evo_pack *handle) const noexcept {
            evo_pack_destroy(handle);
        }
    };
    std::unique_ptr<evo_pack, release> handle_;
};

/** One op of one size on one device: evo_plan. Any number of threads may execute it. */
class plan {
  public:
    /** Plans an outer product mean. @throws error */
    plan(const context &context, const evo_opm_desc &desc) {
        evo_plan *handle = nullptr;
        check(evo_opm_plan_create(context.get(), &desc, &handle));
        handle_.reset(handle);
    }
    /** Plans a triangle multiplication. @throws error */
    plan(const context &context, const evo_trimul_desc &desc) {
        evo_plan *handle = nullptr;
        check(evo_trimul_plan_create(context.get(), &desc, &handle));
        handle_.reset(handle);
    }

    /** The handle; it stays this object's. */
    evo_plan *get() const noexcept {
        return handle_.get();
    }

    /** Kernel, sizes of workspace and pack, flops; the strings live as long as the plan. @throws error */
    evo_plan_info info() const {
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        check(evo_plan_get_info(get(), &info));
        return info;
    }

    /** Computes one outer product mean in stream order; as evo_opm_execute. @throws error */
    void execute(const pack &pack, const evo_opm_args &args, void *workspace, std::size_t workspace_size,
                 evo_stream stream = nullptr) const {
        check(evo_opm_execute(get(), pack.get(), &args, workspace, workspace_size, stream));
    }
    /** Computes one triangle multiplication in stream order; as evo_trimul_execute. @throws error */
    void execute(const pack &pack, const evo_trimul_args &args, void *workspace, std::size_t workspace_size,
                 evo_stream stream = nullptr) const {
        check(evo_trimul_execute(get(), pack.get(), &args, workspace, workspace_size, stream));
    }

  private:
    struct release {
        void operator()(evo_plan *handle) const noexcept {
            evo_plan_destroy(handle);
        }
    };
    std::unique_ptr<evo_plan, release> handle_;
};

inline pack::pack(const plan &plan, const evo_opm_weights &weights, void *memory, std::size_t memory_size,
                  evo_stream stream) {
    evo_pack *handle = nullptr;
    check(evo_opm_pack_weights(plan.get(), &weights, memory, memory_size, stream, &handle));
    handle_.reset(handle);
}

inline pack::pack(const plan &plan, const evo_trimul_weights &weights, void *memory, std::size_t memory_size,
                  evo_stream stream) {
    evo_pack *handle = nullptr;
    check(evo_trimul_pack_weights(plan.get(), &weights, memory, memory_size, stream, &handle));
    handle_.reset(handle);
}

} // namespace evoformer
#endif
