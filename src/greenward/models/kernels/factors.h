/* The factors of the matrix products of attention, for one number type: floats, or bfloat16 where the processor adds
 * the products of two neighbours in one instruction. STEP neighbours of the index that is summed lie side by side:
 * rows of `stride` numbers along another index become (…, stride, STEP).
 */
#if STEP == 2
typedef __m512bh NAME(factors);
INLINE NAME(factors) NAME(load_factors)(const FACTOR *from) { NAME(factors) x; memcpy(&x, from, sizeof x); return x; }
INLINE NAME(factors) NAME(load_numbers)(const NUMBER *from) { return NAME(load_factors)(from); }
/* sum + x · y, for the STEP neighbours at x and those of each lane of y. */
INLINE vec NAME(add_product)(vec sum, const FACTOR *x, NAME(factors) y) {
  int32_t both;
  memcpy(&both, x, sizeof both);
  return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both), y);
}
INLINE void NAME(store_factors)(FACTOR *to, vec x) { store_bf16(to, x); }
INLINE words NAME(widened)(const FACTOR *from) {
  halves x;
  memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, words);
}
/* Writes the value of token t: beside that of the token before where t is odd, beside zeros where it is even. */
INLINE void NAME(put_value)(FACTOR *values, int64_t t, const NUMBER *x, int D) {
  for (int d = 0; d < D; d += LANES) {
    FACTOR *at = values + t / 2 * 2 * D + 2 * d;
    words old, new = NAME(widened)(x + d);
    memcpy(&old, at, sizeof old);
    new = t % 2 ? (old & 0xffff) | new << 16 : new;
    memcpy(at, &new, sizeof new);
  }
}
/* Neighbouring rows of `n` numbers side by side: (rows, stride) become (rows / 2, stride, 2) in `to`. */
INLINE const FACTOR *NAME(interleaved)(const FACTOR *from, int rows, int64_t stride, int64_t n, FACTOR *to) {
  for (int i = 0; i < rows; i += 2)
    for (int64_t j = 0; j < n; j += LANES) {
      words both = NAME(widened)(from + i * stride + j) | NAME(widened)(from + (i + 1) * stride + j) << 16;
      memcpy(to + i * stride + 2 * j, &both, sizeof both);
    }
  return to;
}
INLINE void NAME(unpack)(const NUMBER *from, FACTOR *to, int D) { memcpy(to, from, D * sizeof(FACTOR)); }
INLINE void NAME(put_key)(FACTOR *keys, const NUMBER *x, int64_t stride, int D) {
  for (int d = 0; d < D; d += 2) memcpy(keys + d * stride, x + d, 2 * sizeof(FACTOR));
}
/* Sixteen rows of sixteen words become columns, by swaps of ever smaller blocks. */
INLINE void NAME(transpose)(__m512i *x) {
  __m512i lane = _mm512_loadu_si512(COUNT);
  UNROLL
  for (int half = 8; half; half /= 2) {
    __m512i odd = _mm512_and_si512(lane, _mm512_set1_epi32(half));
    __m512i low = _mm512_add_epi32(lane, _mm512_mullo_epi32(odd, _mm512_set1_epi32(16 / half - 1)));
    __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(half));
    UNROLL
    for (int i = 0; i < 16; i++)
      if (!(i & half)) {
        __m512i first = _mm512_permutex2var_epi32(x[i], low, x[i + half]);
        x[i + half] = _mm512_permutex2var_epi32(x[i], high, x[i + half]);
        x[i] = first;
      }
  }
}
/* `put_key` of `count` tokens, which are `apart` numbers apart. */
INLINE void NAME(put_keys)(FACTOR *keys, const NUMBER *x, int64_t apart, int64_t count, int64_t stride, int D) {
  int64_t t = 0;
  for (; D % 32 == 0 && t + 16 <= count; t += 16)
    for (int d = 0; d < D; d += 32) {
      __m512i words[16];
      UNROLL
      for (int i = 0; i < 16; i++) words[i] = _mm512_loadu_si512(x + (t + i) * apart + d);
      NAME(transpose)(words);
      UNROLL
      for (int i = 0; i < 16; i++) _mm512_storeu_si512(keys + (d + 2 * i) * stride + 2 * t, words[i]);
    }
  for (; t < count; t++) NAME(put_key)(keys + 2 * t, x + t * apart, stride, D);
}
#else
typedef vec NAME(factors);
INLINE vec NAME(load_factors)(const FACTOR *from) { return load_f32(from); }
INLINE vec NAME(load_numbers)(const NUMBER *from) { return LOAD(from); }
INLINE vec NAME(add_product)(vec sum, const FACTOR *x, vec y) { return sum + *x * y; }
INLINE void NAME(store_factors)(FACTOR *to, vec x) { store_f32(to, x); }
INLINE void NAME(unpack)(const NUMBER *from, FACTOR *to, int D) {
  for (int d = 0; d < D; d += LANES) store_f32(to + d, LOAD(from + d));
}
INLINE void NAME(put_value)(FACTOR *values, int64_t t, const NUMBER *x, int D) { NAME(unpack)(x, values + t * D, D); }
INLINE const FACTOR *NAME(interleaved)(const FACTOR *from, int rows, int64_t stride, int64_t n, FACTOR *to) {
  return from;
}
INLINE void NAME(put_key)(FACTOR *keys, const NUMBER *x, int64_t stride, int D) {
  for (int d = 0; d < D; d++) keys[d * stride] = PASTE(number, TYPE)(x[d]);
}
INLINE void NAME(put_keys)(FACTOR *keys, const NUMBER *x, int64_t apart, int64_t count, int64_t stride, int D) {
  for (int64_t t = 0; t < count; t++) NAME(put_key)(keys + t, x + t * apart, stride, D);
}
#endif
