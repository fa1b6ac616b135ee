/*
 * wrapper.cpp: evoformer.hpp: handles are move-only and free themselves in any order, failures are exceptions with the
 * status and the text, streams, events and graphs work. The two ops are run by examples/embed/c++/ops.cpp.
 */
#include <evoformer/evoformer.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

static const char *device() {
    const char *name = std::getenv("EVO_TEST_DEVICE");
    return name ? name : "cpu";
}

static int failures = 0;

#define EXPECT(condition)                                                       \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            failures++;                                                         \
        }                                                                       \
    } while (0)

template <class Handle> static constexpr bool move_only() {
    return !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle> &&
           std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>;
}

static_assert(move_only<evoformer::context>() && move_only<evoformer::memory>() && move_only<evoformer::stream>() &&
              move_only<evoformer::event>() && move_only<evoformer::graph>() && move_only<evoformer::plan>() &&
              move_only<evoformer::pack>());

static void test_errors() {
    evo_status status = EVO_OK;
    std::string text;
    try {
        evoformer::context("no such device");
    } catch (const evoformer::error &error) {
        status = error.status();
        text = error.what();
    }
    EXPECT(status == EVO_ERROR_INVALID_ARGUMENT);
    EXPECT(text.find("EVO_ERROR_INVALID_ARGUMENT") == 0 && text.find("no such device") != text.npos);

    evoformer::context context(device());
    evo_trimul_desc desc = EVO_TRIMUL_DESC_INIT;
    desc.n = -3;
    try {
        evoformer::plan plan(context, desc);
    } catch (const std::exception &error) {
        text = error.what();
    }
    EXPECT(text.find("-3") != text.npos);
}

static void test_order_of_destruction() {
    auto context = std::make_unique<evoformer::context>(device());
    evoformer::memory a(*context, 1000), b(*context, 0);
    evoformer::stream stream(*context);
    evoformer::event event(*context);
    EXPECT(a.data() && a.size() == 1000 && !b.data());
    const void *address = a.data();
    b = std::move(a);
    EXPECT(b.data() == address && b.size() == 1000);
    evoformer::context moved(std::move(*context));
    EXPECT(moved.get() && std::strcmp(moved.device().name, device()) == 0);
    context.reset(); // the others keep what they need
}

static void test_streams() {
    evoformer::context context(device());
    evoformer::memory memory(context, 256);
    evoformer::stream stream(context);
    evoformer::event start(context), stop(context);
    unsigned char host[256] = { 0 };

    start.record(stream);
    context.fill(memory.data(), 7, memory.size(), stream);
    stop.record(stream);
    stop.synchronize();
    EXPECT(stop.since(start) >= 0);

    evoformer::graph graph(context, stream, [&] { context.fill(memory.data(), 9, memory.size(), stream); });
    context.copy(host, memory.data(), sizeof host, stream);
    stream.synchronize();
    EXPECT(host[0] == 7 && host[255] == 7); // recorded, not run
    graph.launch(stream);
    stream.wait(stop);
    context.copy(host, memory.data(), sizeof host, stream);
    stream.synchronize();
    EXPECT(host[0] == 9 && host[255] == 9);

    bool thrown = false;
    try {
        evoformer::graph broken(context, stream, [&] {
            context.fill(memory.data(), 1, memory.size(), stream);
            throw std::runtime_error("given up");
        });
    } catch (const std::runtime_error &error) {
        thrown = std::strcmp(error.what(), "given up") == 0;
    }
    EXPECT(thrown);
    context.fill(memory.data(), 3, memory.size(), stream); // the stream records no more
    context.copy(host, memory.data(), sizeof host, stream);
    context.synchronize(stream);
    EXPECT(host[0] == 3);
}

int main() try {
    bool listed = false;
    for (const evo_device_info &info : evoformer::devices()) listed = listed || std::strcmp(info.name, device()) == 0;
    EXPECT(listed);
    test_errors();
    test_order_of_destruction();
    test_streams();
    return failures > 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
