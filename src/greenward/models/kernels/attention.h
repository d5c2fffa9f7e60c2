/* Attention of one number type over the tokens of prompts and, behind them, of each row, without padding.
 * A part of the work is one group and one key head; keys of the prompt are read once for all rows of the group.
 * Scores are computed for QUERIES queries and 2 · LANES keys at a time.
 */
#ifndef QUERIES
#define QUERIES 4

/* scores[i][j] = query i · key j for the keys [0, n), rounded up to 32; `keys` is transposed, (D, stride). */
INLINE void dot_products(const float *query, const float *keys, int64_t stride, int64_t n, int D, float *scores) {
  for (int64_t j = 0; j < n; j += 2 * LANES) {
    vec a[QUERIES], b[QUERIES];
    UNROLL
    for (int i = 0; i < QUERIES; i++) a[i] = b[i] = (vec){0};
    for (int d = 0; d < D; d++) {
      vec k0 = load_f32(keys + d * stride + j), k1 = load_f32(keys + d * stride + j + LANES);
      UNROLL
      for (int i = 0; i < QUERIES; i++) {
        a[i] += query[i * D + d] * k0;
        b[i] += query[i * D + d] * k1;
      }
    }
    UNROLL
    for (int i = 0; i < QUERIES; i++) {
      store_f32(scores + i * stride + j, a[i]);
      store_f32(scores + i * stride + j + LANES, b[i]);
    }
  }
}

/* out[i] = Σ_j scores[i][j] · values[j], for `width` of the D numbers of a value. */
INLINE void weighted_sum_of(const float *scores, int64_t stride, const float *values, int64_t n, int D, int width,
                            float *out) {
  vec a[QUERIES][2];
  UNROLL
  for (int i = 0; i < QUERIES; i++) a[i][0] = a[i][1] = (vec){0};
  for (int64_t j = 0; j < n; j++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      vec value = load_f32(values + j * D + w * LANES);
      UNROLL
      for (int i = 0; i < QUERIES; i++) a[i][w] += scores[i * stride + j] * value;
    }
  UNROLL
  for (int i = 0; i < QUERIES; i++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) store_f32(out + i * D + w * LANES, a[i][w]);
}
INLINE void weighted_sum(const float *scores, int64_t stride, const float *values, int64_t n, int D, float *out) {
  int d = 0;
  for (; d + 2 * LANES <= D; d += 2 * LANES) weighted_sum_of(scores, stride, values + d, n, D, 2 * LANES, out + d);
  if (d < D) weighted_sum_of(scores, stride, values + d, n, D, LANES, out + d);
}

/* sums[j] += Σ_i scores[i][j] · x[i] for both pairs, for `width` of the D numbers. */
INLINE void add_outer_of(const float *p, const float *x, float *to, const float *q, const float *y, float *onto,
                         int64_t stride, int64_t n, int D, int width) {
  vec X[QUERIES][2], Y[QUERIES][2];
  UNROLL
  for (int i = 0; i < QUERIES; i++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      X[i][w] = load_f32(x + i * D + w * LANES);
      Y[i][w] = load_f32(y + i * D + w * LANES);
    }
  for (int64_t j = 0; j < n; j++)
    UNROLL
    for (int w = 0; w < width / LANES; w++) {
      vec a = load_f32(to + j * D + w * LANES), b = load_f32(onto + j * D + w * LANES);
      UNROLL
      for (int i = 0; i < QUERIES; i++) {
        a += p[i * stride + j] * X[i][w];
        b += q[i * stride + j] * Y[i][w];
      }
      store_f32(to + j * D + w * LANES, a);
      store_f32(onto + j * D + w * LANES, b);
    }
}
INLINE void add_outer(const float *p, const float *x, float *to, const float *q, const float *y, float *onto,
                      int64_t stride, int64_t n, int D) {
  int d = 0;
  for (; d + 2 * LANES <= D; d += 2 * LANES)
    add_outer_of(p, x + d, to + d, q, y + d, onto + d, stride, n, D, 2 * LANES);
  if (d < D) add_outer_of(p, x + d, to + d, q, y + d, onto + d, stride, n, D, LANES);
}

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

INLINE void NAME(unpack)(const NUMBER *from, float *to, int D) {
  for (int d = 0; d < D; d += LANES) store_f32(to + d, LOAD(from + d));
}
INLINE void NAME(pack)(const float *from, NUMBER *to, int D, float factor) {
  for (int d = 0; d < D; d += LANES) STORE(to + d, load_f32(from + d) * factor);
}
INLINE void NAME(unpack_transposed)(const NUMBER *from, float *to, int64_t stride, int D) {
  for (int d = 0; d < D; d++) to[d * stride] = PASTE(number, TYPE)(from[d]);
}

INLINE void NAME(forward_part)(const NUMBER *qkv, int H, int K, int D, const Layout *layout, int64_t g, int k,
                               NUMBER *out, float *lse, float *scratch, int64_t stride) {
  int X = H + 2 * K, share = H / K;
  float scale = 1.f / sqrtf(D), *keys = scratch, *values = keys + D * stride, *scores = values + D * stride;
  float *query = scores + QUERIES * stride, *mixed = query + QUERIES * D;
  for (int64_t r = layout->first_row[g] - 1; r < layout->first_row[g + 1]; r++) {
    Run run = run_of(layout, g, r < layout->first_row[g] ? -1 : r);
    for (int64_t t = 0; t < run.length; t++) {
      const NUMBER *token = qkv + (run.start + t) * X * D;
      NAME(unpack_transposed)(token + (H + k) * D, keys + run.before + t, stride, D);
      NAME(unpack)(token + (H + K + k) * D, values + (run.before + t) * D, D);
    }
    for (int h = k * share; h < (k + 1) * share; h++)
      for (int64_t i = 0; i < run.length; i += QUERIES) {
        int count = run.length - i < QUERIES ? run.length - i : QUERIES;
        for (int e = 0; e < count; e++) NAME(unpack)(qkv + ((run.start + i + e) * X + h) * D, query + e * D, D);
        int64_t n = run.before + i + count;
        dot_products(query, keys, stride, n, D, scores);
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
            store_f32(row + j, weight);
          }
          total[e] = sum(sums);
          lse[(run.start + i + e) * H + h] = most + logf(total[e]);
        }
        weighted_sum(scores, stride, values, n, D, mixed);
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
  float scale = 1.f / sqrtf(D), *keys = scratch, *transposed = keys + D * stride, *values = transposed + D * stride;
  float *dkeys = values + D * stride, *dvalues = dkeys + D * stride, *weights = dvalues + D * stride;
  float *scores = weights + QUERIES * stride, *query = scores + QUERIES * stride, *above = query + QUERIES * D;
  float *mixed = above + QUERIES * D;
  memset(dkeys, 0, 2 * D * stride * sizeof(float));
  for (int64_t r = layout->first_row[g] - 1; r < layout->first_row[g + 1]; r++) {
    Run run = run_of(layout, g, r < layout->first_row[g] ? -1 : r);
    for (int64_t t = 0; t < run.length; t++) {
      const NUMBER *token = qkv + (run.start + t) * X * D;
      NAME(unpack)(token + (H + k) * D, keys + (run.before + t) * D, D);
      NAME(unpack_transposed)(token + (H + k) * D, transposed + run.before + t, stride, D);
      NAME(unpack_transposed)(token + (H + K + k) * D, values + run.before + t, stride, D);
    }
    for (int h = k * share; h < (k + 1) * share; h++)
      for (int64_t i = 0; i < run.length; i += QUERIES) {
        int count = run.length - i < QUERIES ? run.length - i : QUERIES;
        float delta[QUERIES] = {0};
        memset(query, 0, 2 * QUERIES * D * sizeof(float));
        for (int e = 0; e < count; e++) {
          int64_t token = run.start + i + e;
          NAME(unpack)(qkv + (token * X + h) * D, query + e * D, D);
          NAME(unpack)(grad + (token * H + h) * D, above + e * D, D);
          vec product = {0};
          for (int d = 0; d < D; d += LANES) product += load_f32(above + e * D + d) * LOAD(out + (token * H + h) * D + d);
          delta[e] = sum(product);
        }
        int64_t n = run.before + i + count;
        dot_products(query, transposed, stride, n, D, weights);
        dot_products(above, values, stride, n, D, scores);
        for (int e = 0; e < QUERIES; e++) {
          int64_t seen = e < count ? run.before + i + e + 1 : 0;
          float norm = e < count ? lse[(run.start + i + e) * H + h] : 0.f;
          for (int64_t j = 0; j < n; j += LANES) {
            float *weight = weights + e * stride + j, *score = scores + e * stride + j;
            vec p = first(seen - j, exponential(load_f32(weight) * scale - norm), (vec){0});
            store_f32(weight, p);
            store_f32(score, first(seen - j, p * scale * (load_f32(score) - delta[e]), (vec){0}));
          }
        }
        weighted_sum(scores, stride, keys, n, D, mixed);
        for (int e = 0; e < count; e++)
          NAME(pack)(mixed + e * D, dqkv + ((run.start + i + e) * X + h) * D, D, 1.f);
        add_outer(scores, query, dkeys, weights, above, dvalues, stride, n, D);
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
    int64_t count = (5 * D + 2 * QUERIES) * stride + 3 * QUERIES * D;
    float *scratch = floats(count);
    memset(scratch, 0, count * sizeof(float));
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < layout->groups * K; part++)
      FOR_HEAD_SIZE(D, NAME(backward_part)(grad, qkv, out, lse, H, K, SIZE, layout, part / K, part % K, dqkv,
                                           scratch, stride))
    free(scratch);
  }
}
