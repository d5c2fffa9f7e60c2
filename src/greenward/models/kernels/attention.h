/* Attention of one number type over the tokens of prompts and, behind them, of each row, without padding.
 * A part of the work is one group and one key head; keys of the prompt are read once for all rows of the group.
 * Scores are computed for QUERIES queries and 2 · LANES keys at a time.
 */
#ifndef QUERIES
#define QUERIES (LANES == 16 ? 8 : 4) /* their sums stay in registers */

/* Where a run of tokens begins, how many it has, and how many of the prompt stand before it. */
typedef struct { int64_t start, length, before; } Run;
INLINE Run run_of(const Layout *layout, int64_t group, int64_t row) { /* row -1 is the prompt itself */
  if (row < 0) return (Run){layout->prompt_start[group], layout->prompt_length[group], 0};
  return (Run){layout->row_start[row], layout->row_length[row], layout->prompt_length[group]};
}

/* Calls a function whose argument D is a constant for the usual head sizes. */
#define FOR_HEAD_SIZE(D, call) \
  switch (D) { \
    case 32: { enum { SIZE = 32 }; call; break; } \
    case 64: { enum { SIZE = 64 }; call; break; } \
    case 128: { enum { SIZE = 128 }; call; break; } \
    default: { const int SIZE = D; call; } \
  }
#endif

INLINE void NAME(pack)(const float *from, NUMBER *to, int D, float factor) {
  for (int d = 0; d < D; d += LANES) STORE(to + d, load_f32(from + d) * factor);
}
/* scores[i][j] = query i · key j for keys [0, n), rounded up to 2 · LANES; `keys` is (D / STEP, stride, STEP). */
INLINE void NAME(dot_products)(const FACTOR *query, const FACTOR *keys, int64_t stride, int64_t n, int D,
                               float *scores) {
  for (int64_t j = 0; j < n; j += 2 * LANES) {
    vec a[QUERIES], b[QUERIES];
    UNROLL
    for (int i = 0; i < QUERIES; i++) a[i] = b[i] = (vec){0};
    for (int d = 0; d < D; d += STEP) {
      const FACTOR *at = keys + d * stride + j * STEP;
      NAME(factors) k0 = NAME(load_factors)(at), k1 = NAME(load_factors)(at + LANES * STEP);
      UNROLL
      for (int i = 0; i < QUERIES; i++) {
        a[i] = NAME(add_product)(a[i], query + i * D + d, k0);
        b[i] = NAME(add_product)(b[i], query + i * D + d, k1);
      }
    }
    UNROLL
    for (int i = 0; i < QUERIES; i++) {
      store_f32(scores + i * stride + j, a[i]);
      store_f32(scores + i * stride + j + LANES, b[i]);
    }
  }
}

/* out[i] = Σ_j weights[i][j] · values[j], for `width` of the D numbers of a value. Rows of weights have `stride`
 * numbers, which are 0 behind the last of n, and `values` is (n / STEP, D, STEP). */
INLINE void NAME(weighted_sum_of)(const FACTOR *weights, int64_t stride, const FACTOR *values, int64_t n, int D,
                                  int width, float *out) {
  vec a[QUERIES][2];
  UNROLL
  for (int i = 0; i < QUERIES; i++) a[i][0] = a[i][1] = (vec){0};
  for (int64_t j = 0; j < n; j += STEP)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      NAME(factors) value = NAME(load_factors)(values + j * D + w * LANES * STEP);
      UNROLL
      for (int i = 0; i < QUERIES; i++) a[i][w] = NAME(add_product)(a[i][w], weights + i * stride + j, value);
    }
  UNROLL
  for (int i = 0; i < QUERIES; i++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) store_f32(out + i * D + w * LANES, a[i][w]);
}
INLINE void NAME(weighted_sum)(const FACTOR *weights, int64_t stride, const FACTOR *values, int64_t n, int D,
                               float *out) {
  int d = 0;
  for (; d + 2 * LANES <= D; d += 2 * LANES)
    NAME(weighted_sum_of)(weights, stride, values + d * STEP, n, D, 2 * LANES, out + d);
  if (d < D) NAME(weighted_sum_of)(weights, stride, values + d * STEP, n, D, LANES, out + d);
}

/* sums[j] += Σ_i p[i][j] · x[i] for both pairs, for `width` of the D numbers; p and x are interleaved by i. */
INLINE void NAME(add_outer_of)(const FACTOR *p, const FACTOR *x, float *to, const FACTOR *q, const FACTOR *y,
                               float *onto, int64_t stride, int64_t n, int D, int width) {
  NAME(factors) X[QUERIES / STEP][2], Y[QUERIES / STEP][2];
  UNROLL
  for (int i = 0; i < QUERIES; i += STEP)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      X[i / STEP][w] = NAME(load_factors)(x + i * D + w * LANES * STEP);
      Y[i / STEP][w] = NAME(load_factors)(y + i * D + w * LANES * STEP);
    }
  for (int64_t j = 0; j < n; j++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      vec a = load_f32(to + j * D + w * LANES), b = load_f32(onto + j * D + w * LANES);
      UNROLL
      for (int i = 0; i < QUERIES; i += STEP) {
        a = NAME(add_product)(a, p + i * stride + j * STEP, X[i / STEP][w]);
        b = NAME(add_product)(b, q + i * stride + j * STEP, Y[i / STEP][w]);
      }
      store_f32(to + j * D + w * LANES, a);
      store_f32(onto + j * D + w * LANES, b);
    }
}
INLINE void NAME(add_outer)(const FACTOR *p, const FACTOR *x, float *to, const FACTOR *q, const FACTOR *y, float *onto,
                            int64_t stride, int64_t n, int D) {
  int d = 0;
  for (; d + 2 * LANES <= D; d += 2 * LANES)
    NAME(add_outer_of)(p, x + d * STEP, to + d, q, y + d * STEP, onto + d, stride, n, D, 2 * LANES);
  if (d < D) NAME(add_outer_of)(p, x + d * STEP, to + d, q, y + d * STEP, onto + d, stride, n, D, LANES);
}

/* Prefetches numbers that are read soon: heads of neighbouring tokens lie too far apart for the processor to do it. */
INLINE void NAME(prefetch)(const NUMBER *from, int64_t numbers) {
  for (int64_t i = 0; i < numbers; i += 64 / sizeof(NUMBER)) __builtin_prefetch(from + i);
}

INLINE void NAME(forward_part)(const NUMBER *qkv, int H, int K, int D, const Layout *layout, int64_t g, int k,
                               NUMBER *out, float *lse, float *scratch, int64_t stride) {
  int X = H + 2 * K, share = H / K;
  float scale = 1.f / sqrtf(D), *scores = scratch, *mixed = scores + QUERIES * stride;
  FACTOR *weights = (FACTOR *)scores; /* they take the places of scores that were read */
  FACTOR *query = (FACTOR *)(mixed + QUERIES * D), *keys = query + QUERIES * D, *values = keys + D * stride;
  for (int64_t r = layout->first_row[g] - 1; r < layout->first_row[g + 1]; r++) {
    Run run = run_of(layout, g, r < layout->first_row[g] ? -1 : r);
    Run next = r + 1 < layout->first_row[g + 1] ? run_of(layout, g, r + 1) : (Run){0};
    const NUMBER *key = qkv + (run.start * X + H + k) * D, *value = key + K * D;
    NAME(put_keys)(keys + run.before * STEP, key, X * D, run.length, stride, D);
    for (int64_t t = 0; t < run.length; t++) NAME(put_value)(values, run.before + t, value + t * X * D, D);
    for (int h = k * share; h < (k + 1) * share; h++)
      for (int64_t i = 0; i < run.length; i += QUERIES) {
        int count = run.length - i < QUERIES ? run.length - i : QUERIES;
        for (int e = 0; e < count; e++) NAME(unpack)(qkv + ((run.start + i + e) * X + h) * D, query + e * D, D);
        for (int64_t t = i; t < i + QUERIES && t < next.length; t++) {
          const NUMBER *token = qkv + (next.start + t) * X * D;
          NAME(prefetch)(token + h * D, D);
          NAME(prefetch)(token + (H + k) * D, D);
          NAME(prefetch)(token + (H + K + k) * D, D);
        }
        int64_t n = run.before + i + count;
        NAME(dot_products)(query, keys, stride, n, D, scores);
        float total[QUERIES];
        for (int e = 0; e < count; e++) {
          float *row = scores + e * stride;
          int64_t seen = run.before + i + e + 1;
          vec top = all(-INFINITY), sums = {0};
          for (int64_t j = 0; j < seen; j += LANES) top = at_least(first(seen - j, load_f32(row + j), top), top);
          float most = largest(top) * scale;
          for (int64_t j = 0; j < n; j += LANES) {
            vec weight = first(seen - j, exponential(load_f32(row + j) * scale - most), (vec){0});
            sums += weight;
            NAME(store_factors)(weights + e * STEP * stride + j, weight);
          }
          total[e] = sum(sums);
          lse[(run.start + i + e) * H + h] = most + logf(total[e]);
        }
        NAME(weighted_sum)(weights, STEP * stride, values, n, D, mixed);
        for (int e = 0; e < count; e++)
          NAME(pack)(mixed + e * D, out + ((run.start + i + e) * H + h) * D, D, 1.f / total[e]);
      }
  }
}

/* Attended values (M, H, D) and log-sum-exps (M, H) of rotated queries, keys and values (M, X, D). */
void NAME(attention)(const NUMBER *qkv, int64_t H, int64_t K, int64_t D, const Layout *layout, NUMBER *out, float *lse,
                     int threads) {
  int64_t stride = rounded_up(layout->longest, 2 * LANES) + 2 * LANES;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int64_t count = (2 * D + QUERIES) * stride + 2 * QUERIES * D;
    float *scratch = floats(count);
    memset(scratch, 0, count * sizeof(float));
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < layout->groups * K; part++)
      FOR_HEAD_SIZE(D, NAME(forward_part)(qkv, H, K, SIZE, layout, part / K, part % K, out, lse, scratch, stride))
    free(scratch);
  }
}

INLINE void NAME(backward_part)(const NUMBER *grad, const NUMBER *qkv, const NUMBER *out, const float *lse, int H,
                                int K, int D, const Layout *layout, int64_t g, int k, NUMBER *dqkv, float *scratch,
                                int64_t stride) {
  int X = H + 2 * K, share = H / K;
  float scale = 1.f / sqrtf(D), *dkeys = scratch, *dvalues = dkeys + D * stride, *weights = dvalues + D * stride;
  float *scores = weights + QUERIES * stride, *mixed = scores + QUERIES * stride;
  FACTOR *p = (FACTOR *)weights, *dscores = (FACTOR *)scores; /* they take the places of numbers that were read */
  FACTOR *keys = (FACTOR *)(mixed + QUERIES * D), *transposed = keys + D * stride, *values = transposed + D * stride;
  FACTOR *query = values + D * stride, *above = query + QUERIES * D, *pairs = above + QUERIES * D;
  memset(dkeys, 0, 2 * D * stride * sizeof(float));
  for (int64_t r = layout->first_row[g] - 1; r < layout->first_row[g + 1]; r++) {
    Run run = run_of(layout, g, r < layout->first_row[g] ? -1 : r);
    Run next = r + 1 < layout->first_row[g + 1] ? run_of(layout, g, r + 1) : (Run){0};
    const NUMBER *key = qkv + (run.start * X + H + k) * D, *value = key + K * D;
    for (int64_t t = 0; t < run.length; t++) NAME(put_value)(keys, run.before + t, key + t * X * D, D);
    NAME(put_keys)(transposed + run.before * STEP, key, X * D, run.length, stride, D);
    NAME(put_keys)(values + run.before * STEP, value, X * D, run.length, stride, D);
    for (int h = k * share; h < (k + 1) * share; h++)
      for (int64_t i = 0; i < run.length; i += QUERIES) {
        int count = run.length - i < QUERIES ? run.length - i : QUERIES;
        float delta[QUERIES] = {0};
        memset(query, 0, 2 * QUERIES * D * sizeof(FACTOR));
        for (int e = 0; e < count; e++) {
          int64_t token = run.start + i + e;
          NAME(unpack)(qkv + (token * X + h) * D, query + e * D, D);
          NAME(unpack)(grad + (token * H + h) * D, above + e * D, D);
          vec product = {0};
          for (int d = 0; d < D; d += LANES)
            product += LOAD(grad + (token * H + h) * D + d) * LOAD(out + (token * H + h) * D + d);
          delta[e] = sum(product);
        }
        for (int64_t t = i; t < i + QUERIES && t < next.length; t++) {
          int64_t token = next.start + t;
          NAME(prefetch)(qkv + (token * X + h) * D, D);
          NAME(prefetch)(qkv + (token * X + H + k) * D, D);
          NAME(prefetch)(qkv + (token * X + H + K + k) * D, D);
          NAME(prefetch)(grad + (token * H + h) * D, D);
          NAME(prefetch)(out + (token * H + h) * D, D);
        }
        int64_t n = run.before + i + count;
        NAME(dot_products)(query, transposed, stride, n, D, weights);
        NAME(dot_products)(above, values, stride, n, D, scores);
        for (int e = 0; e < QUERIES; e++) {
          int64_t seen = e < count ? run.before + i + e + 1 : 0;
          float norm = e < count ? lse[(run.start + i + e) * H + h] : 0.f;
          for (int64_t j = 0; j < n; j += LANES) {
            vec weight = exponential(load_f32(weights + e * stride + j) * scale - norm);
            vec slope = weight * scale * (load_f32(scores + e * stride + j) - delta[e]);
            NAME(store_factors)(p + e * STEP * stride + j, first(seen - j, weight, (vec){0}));
            NAME(store_factors)(dscores + e * STEP * stride + j, first(seen - j, slope, (vec){0}));
          }
        }
        NAME(weighted_sum)(dscores, STEP * stride, keys, n, D, mixed);
        for (int e = 0; e < count; e++)
          NAME(pack)(mixed + e * D, dqkv + ((run.start + i + e) * X + h) * D, D, 1.f);
        FACTOR *behind = pairs + QUERIES * STEP * stride, *beside = behind + QUERIES * STEP * stride;
        NAME(add_outer)(NAME(interleaved)(dscores, QUERIES, STEP * stride, n, pairs),
                        NAME(interleaved)(query, QUERIES, D, D, beside), dkeys,
                        NAME(interleaved)(p, QUERIES, STEP * stride, n, behind),
                        NAME(interleaved)(above, QUERIES, D, D, beside + QUERIES * D), dvalues, STEP * stride, n, D);
      }
    if (r < layout->first_row[g]) continue;
    for (int64_t t = 0; t < run.length; t++) { /* a row's own keys are complete; the prompt's serve further rows */
      NUMBER *token = dqkv + (run.start + t) * X * D;
      NAME(pack)(dkeys + (run.before + t) * D, token + (H + k) * D, D, 1.f);
      NAME(pack)(dvalues + (run.before + t) * D, token + (H + K + k) * D, D, 1.f);
    }
    memset(dkeys + run.before * D, 0, run.length * D * sizeof(float));
    memset(dvalues + run.before * D, 0, run.length * D * sizeof(float));
  }
  for (int64_t t = 0; t < layout->prompt_length[g]; t++) {
    NUMBER *token = dqkv + (layout->prompt_start[g] + t) * X * D;
    NAME(pack)(dkeys + t * D, token + (H + k) * D, D, 1.f);
    NAME(pack)(dvalues + t * D, token + (H + K + k) * D, D, 1.f);
  }
}

/* The gradient of `attention` with respect to the rotated queries, keys and values. */
void NAME(attention_backward)(const NUMBER *grad, const NUMBER *qkv, const NUMBER *out, const float *lse, int64_t H,
                              int64_t K, int64_t D, const Layout *layout, NUMBER *dqkv, int threads) {
  int64_t stride = rounded_up(layout->longest, 2 * LANES) + 2 * LANES;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int64_t count = (5 * D + 4 * QUERIES) * stride + 5 * QUERIES * D;
    float *scratch = floats(count);
    memset(scratch, 0, count * sizeof(float));
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < layout->groups * K; part++)
      FOR_HEAD_SIZE(D, NAME(backward_part)(grad, qkv, out, lse, H, K, SIZE, layout, part / K, part % K, dqkv,
                                           scratch, stride))
    free(scratch);
  }
}
