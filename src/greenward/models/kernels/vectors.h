/* As many floats at a time as a register holds, in the vector extensions of GCC and Clang: vectors of other sizes
 * are computed through memory. Memory holds float32 or bfloat16; arithmetic is float32.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define INLINE static inline __attribute__((always_inline))
/* Before a loop over an array of sums, which stays in registers only when the loop is gone early. */
#define UNROLL _Pragma("GCC unroll 16")

typedef uint16_t bf16;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef float vec4 __attribute__((vector_size(16)));

INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec choose(ints mask, vec yes, vec no) { return (vec)((mask & (ints)yes) | (~mask & (ints)no)); }
/* Both keep a NaN of x. */
#ifdef __AVX512F__
INLINE vec at_least(vec x, vec low) { return (vec)_mm512_max_ps((__m512)low, (__m512)x); }
INLINE vec at_most(vec x, vec high) { return (vec)_mm512_min_ps((__m512)high, (__m512)x); }
#else
INLINE vec at_least(vec x, vec low) { return choose(x < low, low, x); }
INLINE vec at_most(vec x, vec high) { return choose(x > high, high, x); }
#endif

INLINE vec load_f32(const float *from) { vec x; memcpy(&x, from, sizeof x); return x; }
INLINE void store_f32(float *to, vec x) { memcpy(to, &x, sizeof x); }
INLINE vec load_bf16(const bf16 *from) {
#ifdef __AVX512F__ /* GCC converts sixteen numbers in two parts */
  return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#endif
  halves x;
  memcpy(&x, from, sizeof x);
  return (vec)(__builtin_convertvector(x, words) << 16);
}
/* Rounds to the nearest even number; a NaN stays one. */
INLINE void store_bf16(bf16 *to, vec x) {
#ifdef __AVX512BF16__ /* which makes subnormal numbers 0 */
  __m256bh packed = _mm512_cvtneps_pbh((__m512)x);
  memcpy(to, &packed, sizeof packed);
  return;
#endif
  words bits = (words)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  words nan = (words)(x != x);
  halves out = __builtin_convertvector((nan & 0x7fc0) | (~nan & rounded), halves);
  memcpy(to, &out, sizeof out);
}
INLINE float number_f32(float x) { return x; }
INLINE float number_bf16(bf16 x) { uint32_t bits = (uint32_t)x << 16; float out; memcpy(&out, &bits, 4); return out; }

INLINE float sum(vec x) {
  union { vec whole; vec4 part[LANES / 4]; } a = {x};
  vec4 c = a.part[0];
  UNROLL
  for (int i = 1; i < LANES / 4; i++) c += a.part[i];
  return (c[0] + c[2]) + (c[1] + c[3]);
}
/* The largest number; of a NaN among them nothing is promised: the sums that follow are NaN. */
INLINE float largest(vec x) {
  float top = x[0];
  for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
  return top;
}
static const int32_t COUNT[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/* x in the first `n` lanes, `other` in those behind. */
INLINE vec first(int n, vec x, vec other) {
  ints count;
  memcpy(&count, COUNT, sizeof count);
  return choose(count < n, x, other);
}

/* exp(x) with a relative error of about 1e-7 for x in [-87, 88], which other numbers are brought into
 * (Cephes, expf). */
INLINE vec exponential(vec x) {
  x = at_most(at_least(x, all(-87.f)), all(88.f));
  vec magic = all(12582912.f), n = (x * 1.44269504f + magic) - magic;
  vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = (r * r) * y + (r + 1.f);
  return y * (vec)((__builtin_convertvector(n, ints) + 127) << 23);
}

INLINE int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
INLINE float *floats(int64_t count) { return aligned_alloc(64, rounded_up(count * sizeof(float), 64)); }
