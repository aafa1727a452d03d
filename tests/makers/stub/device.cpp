// A device that computes nothing: an integrated GPU by HIP's rules of placement, for sizing alone.
//
//     g++ -shared -fPIC -O1 -I GGML/include -I GGML/src device.cpp -o device.so
//     LD_PRELOAD=./device.so llama-server ... -fit on
//
// llama.cpp places tensors and sizes graphs on it as it would on ROCm: names, alignment, the padding of
// quantized rows, flash attention's copies, and which operations there are follow ggml-cuda of b11434.
// Memory is reserved and never touched. A graph that is really computed does nothing.

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <cstring>
#include <sys/mman.h>

static const size_t TOTAL = 1024ull << 30; // everything fits, so that nothing is sized twice
static ggml_backend_buffer_type device_type;
static ggml_backend_buffer_type host_type;
static ggml_backend_device      device;
static ggml_backend_reg         registry;

// --- buffers
static void buffer_free(ggml_backend_buffer_t buffer) { munmap(buffer->context, buffer->size + 1); }
static void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }
static void buffer_memset(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t) {}
static void buffer_set(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {}
static void buffer_get(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t, size_t size) { memset(data, 0, size); }
static bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor *, ggml_tensor *) { return true; }
static void buffer_clear(ggml_backend_buffer_t, uint8_t) {}

static ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    void * base = mmap(nullptr, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return nullptr;
    }
    ggml_backend_buffer_i calls = {};
    calls.free_buffer   = buffer_free;
    calls.get_base      = buffer_base;
    calls.memset_tensor = buffer_memset;
    calls.set_tensor    = buffer_set;
    calls.get_tensor    = buffer_get;
    calls.cpy_tensor    = buffer_copy;
    calls.clear         = buffer_clear;
    return ggml_backend_buffer_init(type, calls, base, size);
}

static const char * device_type_name(ggml_backend_buffer_type_t) { return "ROCm0"; }
static const char * host_type_name(ggml_backend_buffer_type_t) { return "ROCm_Host"; }
static size_t device_alignment(ggml_backend_buffer_type_t) { return 128; }
static size_t host_alignment(ggml_backend_buffer_type_t) { return 32; }
static bool yes(ggml_backend_buffer_type_t) { return true; }

static size_t padded(size_t size) { return (size + 127) / 128 * 128; }

// fattn-common.cuh: f16 copies of a K and V that are not f16 lie behind the result
static size_t flash_attention_size(const ggml_tensor * t) {
    size_t size = ggml_nbytes(t);
    const ggml_tensor * k = t->src[1];
    const ggml_tensor * v = t->src[2];
    const bool v_in_k = v->view_src && (v->view_src == k || (v->view_src == k->view_src && v->view_offs == k->view_offs));
    if (k->type != GGML_TYPE_F16) {
        size = padded(size) + ggml_nelements(k) * 2;
    }
    if (v->type != GGML_TYPE_F16 && !v_in_k) {
        size = padded(size) + ggml_nelements(v) * 2;
    }
    return size;
}

static size_t device_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * t) {
    size_t size = t->op == GGML_OP_FLASH_ATTN_EXT ? flash_attention_size(t) : ggml_nbytes(t);
    if (ggml_is_quantized(t->type) && t->ne[0] % 512 != 0) {
        size += ggml_row_size(t->type, 512 - t->ne[0] % 512);
    }
    return size;
}

// --- the backend
static ggml_guid guid = {0x68, 0x61, 0x6c, 0x6f, 0x66, 0x6f, 0x72, 0x67, 0x65, 0x2d, 0x73, 0x74, 0x75, 0x62, 0x30, 0x31};
static const char * backend_name(ggml_backend_t) { return "ROCm0"; }
static void backend_free(ggml_backend_t backend) { delete backend; }
static void backend_wait(ggml_backend_t) {}
static ggml_status backend_compute(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_SUCCESS; }
static void event_nothing(ggml_backend_t, ggml_backend_event_t) {}

static ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i calls = {};
    calls.get_name      = backend_name;
    calls.free          = backend_free;
    calls.synchronize   = backend_wait;
    calls.graph_compute = backend_compute;
    calls.event_record  = event_nothing;
    calls.event_wait    = event_nothing;
    return new ggml_backend{&guid, calls, dev, nullptr};
}

// --- the device
static const char * device_name(ggml_backend_dev_t) { return "ROCm0"; }
static const char * device_description(ggml_backend_dev_t) { return "a device that computes nothing"; }
static enum ggml_backend_dev_type device_kind(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_IGPU; }
static void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = TOTAL; }
static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t) { return &device_type; }
static ggml_backend_buffer_type_t device_host_buffers(ggml_backend_dev_t) { return &host_type; }
static bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == &device_type; }
static ggml_backend_event_t event_new(ggml_backend_dev_t dev) { return new ggml_backend_event{dev, nullptr}; }
static void event_free(ggml_backend_dev_t, ggml_backend_event_t event) { delete event; }
static void event_wait(ggml_backend_dev_t, ggml_backend_event_t) {}

static void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = device_kind(dev);
    device_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.async = props->caps.host_buffer = props->caps.events = true;
    props->caps.buffer_from_host_ptr = props->caps.mmap_support = false;
}

static bool device_offload(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS:   return false;
        case GGML_OP_MUL_MAT:    return op->ne[1] >= 32;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:       return op->ne[2] >= 32;
        default:                 return ggml_nrows(op) >= 32;
    }
}

static bool is_float(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16; }

// What ggml-cuda lacks, as far as language models ask for it; all else it has.
static bool device_supports(ggml_backend_dev_t, const ggml_tensor * op) {
    const ggml_tensor * a = op->src[0];
    const ggml_tensor * b = op->src[1];
    switch (op->op) {
        case GGML_OP_GET_ROWS:
            return (a->type != GGML_TYPE_IQ4_NL && a->type != GGML_TYPE_MXFP4) || a->ne[0] % 256 == 0;
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return b->type != GGML_TYPE_F16 || a->type == GGML_TYPE_F16;
        case GGML_OP_REPEAT:
            return is_float(a->type);
        case GGML_OP_ADD: case GGML_OP_SUB: case GGML_OP_MUL: case GGML_OP_DIV:
            return is_float(a->type) && is_float(b->type) && is_float(op->type);
        case GGML_OP_SSM_CONV:
            return a->ne[1] % 128 == 0;
        case GGML_OP_SSM_SCAN:
            return op->src[3]->ne[0] == 1 && a->ne[0] % 32 == 0 && a->ne[0] >= 96 && a->ne[1] % 16 == 0;
        case GGML_OP_ARGSORT: {
            int64_t columns = 1;
            while (columns < a->ne[0]) {
                columns *= 2;
            }
            return columns * sizeof(int) <= 65536;
        }
        default:
            return true;
    }
}

// --- the registry
static const char * registry_name(ggml_backend_reg_t) { return "ROCm"; }
static size_t registry_count(ggml_backend_reg_t) { return 1; }
static ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t) { return &device; }
static void * registry_address(ggml_backend_reg_t, const char *) { return nullptr; }

__attribute__((constructor)) static void register_device() {
    registry.api_version            = GGML_BACKEND_API_VERSION;
    registry.iface.get_name         = registry_name;
    registry.iface.get_device_count = registry_count;
    registry.iface.get_device       = registry_device;
    registry.iface.get_proc_address = registry_address;

    device.reg                        = &registry;
    device.iface.get_name             = device_name;
    device.iface.get_description      = device_description;
    device.iface.get_memory           = device_memory;
    device.iface.get_type             = device_kind;
    device.iface.get_props            = device_props;
    device.iface.init_backend         = device_init;
    device.iface.get_buffer_type      = device_buffers;
    device.iface.get_host_buffer_type = device_host_buffers;
    device.iface.supports_op          = device_supports;
    device.iface.supports_buft        = device_supports_buft;
    device.iface.offload_op           = device_offload;
    device.iface.event_new            = event_new;
    device.iface.event_free           = event_free;
    device.iface.event_synchronize    = event_wait;

    device_type.device               = &device;
    device_type.iface.get_name       = device_type_name;
    device_type.iface.alloc_buffer   = type_alloc;
    device_type.iface.get_alignment  = device_alignment;
    device_type.iface.get_alloc_size = device_alloc_size;

    host_type.device              = &device;
    host_type.iface.get_name      = host_type_name;
    host_type.iface.alloc_buffer  = type_alloc;
    host_type.iface.get_alignment = host_alignment;
    host_type.iface.is_host       = yes;

    ggml_backend_register(&registry);
}
