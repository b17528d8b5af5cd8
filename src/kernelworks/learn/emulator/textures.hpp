// Texture objects over linear memory, over pitched memory and over CUDA arrays of one or two dimensions.
#pragma once

enum cudaResourceType { cudaResourceTypeArray, cudaResourceTypeMipmappedArray, cudaResourceTypeLinear, cudaResourceTypePitch2D };
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaTextureAddressMode { cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder };
enum cudaTextureFilterMode { cudaFilterModePoint, cudaFilterModeLinear };
enum cudaChannelFormatKind { cudaChannelFormatKindSigned, cudaChannelFormatKindUnsigned, cudaChannelFormatKindFloat };
struct cudaChannelFormatDesc { int x, y, z, w; cudaChannelFormatKind f; };
typedef struct cudaArray { void* data; kw_size width, height, element; }* cudaArray_t;
struct cudaResourceDesc {
    cudaResourceType resType;
    union {
        struct { cudaArray_t array; } array;
        struct { void* devPtr; cudaChannelFormatDesc desc; kw_size sizeInBytes; } linear;
        struct { void* devPtr; cudaChannelFormatDesc desc; kw_size width, height, pitchInBytes; } pitch2D;
    } res;
};
struct cudaTextureDesc {
    cudaTextureAddressMode addressMode[3];
    cudaTextureFilterMode filterMode;
    cudaTextureReadMode readMode;
    int sRGB;
    float borderColor[4];
    int normalizedCoords;
};
struct cudaResourceViewDesc;
typedef unsigned long long cudaTextureObject_t;

inline cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind f) {
    return cudaChannelFormatDesc{x, y, z, w, f};
}
template <class T> cudaChannelFormatDesc cudaCreateChannelDesc() {
    int bits = int(8 * sizeof(T));
    return cudaChannelFormatDesc{bits, 0, 0, 0, T(0.5f) != T(0) ? cudaChannelFormatKindFloat
                                                : T(-1) < T(0) ? cudaChannelFormatKindSigned : cudaChannelFormatKindUnsigned};
}
#define KW_CHANNELS(T, count, bits, kind)                                  \
    template <> inline cudaChannelFormatDesc cudaCreateChannelDesc<T>() {   \
        return {bits, count > 1 ? bits : 0, count > 2 ? bits : 0, count > 3 ? bits : 0, cudaChannelFormatKind##kind}; \
    }
KW_CHANNELS(float2, 2, 32, Float)
KW_CHANNELS(float4, 4, 32, Float)
KW_CHANNELS(int2, 2, 32, Signed)
KW_CHANNELS(int4, 4, 32, Signed)
KW_CHANNELS(uchar4, 4, 8, Unsigned)

inline cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* d, kw_size width, kw_size height = 0, unsigned = 0) {
    kw_size element = kw_size(d->x + d->y + d->z + d->w) / 8, rows = height ? height : 1;
    *array = new cudaArray{kw_allocate(width * rows * element), width, rows, element};
    return cudaSuccess;
}
inline cudaError_t cudaFreeArray(cudaArray_t array) { return kw_free(array->data), delete array, cudaSuccess; }
inline cudaError_t cudaMemcpy2DToArray(cudaArray_t to, kw_size left, kw_size top, const void* from, kw_size pitch, kw_size width,
                                       kw_size height, cudaMemcpyKind) {
    for (kw_size row = 0; row < height; row++)
        kw_copy(static_cast<char*>(to->data) + (top + row) * to->width * to->element + left,
                static_cast<const char*>(from) + row * pitch, width);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyToArray(cudaArray_t to, kw_size left, kw_size top, const void* from, kw_size bytes, cudaMemcpyKind) {
    return kw_copy(static_cast<char*>(to->data) + top * to->width * to->element + left, from, bytes), cudaSuccess;
}

namespace kw {

struct Texture {
    const char* data;
    kw_size pitch, element;
    int width, height;
    cudaTextureDesc how;
};

// What a handle stands for: the emulator's own memory, of which no access is a thread's.
__attribute__((noinline, no_sanitize("thread"))) inline Texture texture_of(cudaTextureObject_t handle) {
    return *reinterpret_cast<const Texture*>(handle);
}

// The element that a coordinate means, or -1 outside with a border.
inline int place(int at, int count, cudaTextureAddressMode mode, int normalized) {
    if (mode == cudaAddressModeWrap && normalized) return ((at % count) + count) % count;
    if (mode == cudaAddressModeMirror && normalized) {
        int turn = ((at % (2 * count)) + 2 * count) % (2 * count);
        return turn < count ? turn : 2 * count - 1 - turn;
    }
    if (mode == cudaAddressModeBorder) return at < 0 || at >= count ? -1 : at;
    return at < 0 ? 0 : at >= count ? count - 1 : at;
}

template <class T>
T texel(const Texture& t, int column, int row) {
    column = place(column, t.width, t.how.addressMode[0], t.how.normalizedCoords);
    row = place(row, t.height, t.how.addressMode[1], t.how.normalizedCoords);
    if (column < 0 || row < 0) return T();
    const char* at = t.data + kw_size(row) * t.pitch + kw_size(column) * t.element;
    if constexpr (sizeof(T) == 4) {
        if (t.how.readMode == cudaReadModeNormalizedFloat && t.element == 1) return T(*(const unsigned char*)at / 255.0f);
        if (t.how.readMode == cudaReadModeNormalizedFloat && t.element == 2) return T(*(const unsigned short*)at / 65535.0f);
    }
    return *(const T*)at;
}

template <class T> T blend(T a, T, float) { return a; }  // only numbers of float are filtered
inline float blend(float a, float b, float part) { return (1.0f - part) * a + part * b; }
inline float4 blend(float4 a, float4 b, float p) {
    return make_float4(blend(a.x, b.x, p), blend(a.y, b.y, p), blend(a.z, b.z, p), blend(a.w, b.w, p));
}

// Weights of a filter have 8 bits behind the point.
inline float weight(float part) { return rintf(part * 256.0f) / 256.0f; }

template <class T>
T sample(const Texture& t, float x, float y) {
    if (t.how.normalizedCoords) x *= t.width, y *= t.height;
    if (t.how.filterMode == cudaFilterModePoint) return texel<T>(t, int(floorf(x)), int(floorf(y)));
    float left = floorf(x - 0.5f), top = floorf(y - 0.5f), across = weight(x - 0.5f - left), down = weight(y - 0.5f - top);
    int c = int(left), r = int(top);
    T upper = blend(texel<T>(t, c, r), texel<T>(t, c + 1, r), across);
    if (t.height == 1) return upper;
    return blend(upper, blend(texel<T>(t, c, r + 1), texel<T>(t, c + 1, r + 1), across), down);
}

}  // namespace kw

inline cudaError_t cudaCreateTextureObject(cudaTextureObject_t* made, const cudaResourceDesc* r, const cudaTextureDesc* how,
                                           const cudaResourceViewDesc*) {
    auto bytes = [](const cudaChannelFormatDesc& d) { return kw_size(d.x + d.y + d.z + d.w) / 8; };
    kw::Texture t = {};
    if (r->resType == cudaResourceTypeLinear) {
        kw_size element = bytes(r->res.linear.desc);
        t = {(const char*)r->res.linear.devPtr, 0, element, int(r->res.linear.sizeInBytes / element), 1, *how};
    } else if (r->resType == cudaResourceTypePitch2D) {
        const auto& p = r->res.pitch2D;
        t = {(const char*)p.devPtr, p.pitchInBytes, bytes(p.desc), int(p.width), int(p.height), *how};
    } else {
        const cudaArray& a = *r->res.array.array;
        t = {(const char*)a.data, a.width * a.element, a.element, int(a.width), int(a.height), *how};
    }
    *made = (cudaTextureObject_t) new kw::Texture(t);
    return cudaSuccess;
}
inline cudaError_t cudaDestroyTextureObject(cudaTextureObject_t handle) { return delete (kw::Texture*)handle, cudaSuccess; }
template <class T> T tex1Dfetch(cudaTextureObject_t handle, int at) {
    kw::Texture t = kw::texture_of(handle);
    return at < 0 || at >= t.width ? T() : kw::texel<T>(t, at, 0);
}
template <class T> T tex1D(cudaTextureObject_t handle, float x) { return kw::sample<T>(kw::texture_of(handle), x, 0.5f); }
template <class T> T tex2D(cudaTextureObject_t handle, float x, float y) { return kw::sample<T>(kw::texture_of(handle), x, y); }
