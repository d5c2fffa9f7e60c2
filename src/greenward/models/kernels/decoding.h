/* Decoding of one number type: each row's newest token attends to its prompt and to its own tokens in a cache.
 * QUERY_BLOCK queries of a group read the prompt together; own tokens differ in number.
 */
#ifndef QUERY_BLOCK
#define QUERY_BLOCK 8
#define AHEAD 64 /* at most so many tokens are prefetched */
#endif

/* The cache of keys has, for each key head, LANES tokens side by side: (tokens / LANES, D / STEP, LANES, STEP); that of
 * values is (tokens / STEP, D, STEP). */
INLINE void NAME(write_token)(NUMBER *keys, NUMBER *values, int64_t t, const NUMBER *key, const NUMBER *value, int D) {
  NUMBER *block = keys + t / LANES * LANES * D + t % LANES * STEP;
#if STEP == 2
  NAME(put_key)(block, key, LANES, D);
  NAME(put_value)(values, t, value, D);
#else
  for (int d = 0; d < D; d++) block[d * LANES] = key[d];
  memcpy(values + t * D, value, D * sizeof(NUMBER));
#endif
}

/* Copies the keys and values of prompts to a cache (offset of the group + K · tokens) of each. */
void NAME(cache_prompts)(const NUMBER *qkv, int64_t H, int64_t K, int64_t D, const Layout *layout, const int64_t *offset,
                         NUMBER *keys, NUMBER *values, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < layout->groups * K; part++) {
    int64_t g = part / K, k = part % K, length = layout->prompt_length[g], room = rounded_up(length, LANES);
    int64_t place = (offset[g] * K + k * room) * D;
    for (int64_t t = 0; t < length; t++) {
      const NUMBER *token = qkv + (layout->prompt_start[g] + t) * (H + 2 * K) * D;
      NAME(write_token)(keys + place, values + place, t, token + (H + k) * D, token + (H + K + k) * D, D);
    }
  }
}

/* The same of what the next part reads: a row's tokens lie on pages of their own. */
INLINE void NAME(prefetch_next)(const NUMBER *from, int64_t numbers) {
  for (int64_t i = 0; i < numbers; i += 64 / sizeof(NUMBER)) __builtin_prefetch(from + i, 0, 2);
}

/* The scores of `width` queries against the keys of a cache; -inf behind the last. */
INLINE void NAME(cached_scores)(const FACTOR *query, int width, const NUMBER *keys, int64_t n, int D, float *scores,
                                int64_t stride) {
  for (int64_t j = 0; j < n; j += LANES) {
    vec a[QUERY_BLOCK];
    UNROLL
    for (int i = 0; i < width; i++) a[i] = (vec){0};
    for (int d = 0; d < D; d += STEP) {
      NAME(factors) key = NAME(load_numbers)(keys + j * D + d * LANES);
      UNROLL
      for (int i = 0; i < width; i++) a[i] = NAME(add_product)(a[i], query + i * D + d, key);
    }
    UNROLL
    for (int i = 0; i < width; i++) store_f32(scores + i * stride + j, first(n - j, a[i], all(-INFINITY)));
  }
}
/* The same of one query, in four sums: one would wait for each addition. */
INLINE void NAME(cached_scores_of_one)(const FACTOR *query, const NUMBER *keys, int64_t n, int D, float *scores) {
  for (int64_t j = 0; j < n; j += LANES) {
    vec a[4] = {{0}, {0}, {0}, {0}};
    for (int d = 0; d < D; d += 4 * STEP)
      UNROLL
      for (int i = 0; i < 4; i++) {
        int at = d + i * STEP;
        a[i] = NAME(add_product)(a[i], query + at, NAME(load_numbers)(keys + j * D + at * LANES));
      }
    store_f32(scores + j, first(n - j, (a[0] + a[1]) + (a[2] + a[3]), all(-INFINITY)));
  }
}
INLINE void NAME(add_cached_values)(const FACTOR *weights, int width, int64_t stride, const NUMBER *values, int64_t n,
                                    int D, float *out) {
  for (int d = 0; d < D; d += LANES) {
    vec a[QUERY_BLOCK];
    UNROLL
    for (int i = 0; i < width; i++) a[i] = load_f32(out + i * D + d);
    for (int64_t j = 0; j < n; j += STEP) {
      NAME(factors) value = NAME(load_numbers)(values + j * D + d * STEP);
      UNROLL
      for (int i = 0; i < width; i++) a[i] = NAME(add_product)(a[i], weights + i * stride + j, value);
    }
    UNROLL
    for (int i = 0; i < width; i++) store_f32(out + i * D + d, a[i]);
  }
}
/* The same of one query; weights and values behind the last are 0 up to a multiple of LANES. */
INLINE void NAME(add_cached_values_of_one)(const FACTOR *weights, const NUMBER *values, int64_t n, int D, float *out) {
  for (int d = 0; d < D; d += LANES) {
    vec a[4] = {load_f32(out + d), {0}, {0}, {0}};
    for (int64_t j = 0; j < n; j += 4 * STEP)
      UNROLL
      for (int i = 0; i < 4; i++) {
        int64_t at = j + i * STEP;
        a[i] = NAME(add_product)(a[i], weights + at, NAME(load_numbers)(values + at * D + d * STEP));
      }
    store_f32(out + d, (a[0] + a[1]) + (a[2] + a[3]));
  }
}

/* `width` queries of one key head and group, the last of which may be unused, over their prompt and their own
 * tokens. For the next part, `next_numbers` of keys and of values are prefetched, `next` behind these. */
INLINE void NAME(decode_queries)(const FACTOR *query, int width, int count, int D, const NUMBER *prompt_keys,
                                 const NUMBER *prompt_values, int64_t prompt, NUMBER *const *own_keys,
                                 NUMBER *const *own_values, const int64_t *own, const int64_t *next,
                                 const int64_t *next_numbers, NUMBER *const *out, float *scores, int64_t stride) {
  float mixed[QUERY_BLOCK * D] __attribute__((aligned(64))), total[QUERY_BLOCK], scale = 1.f / sqrtf(D);
  FACTOR *weights = (FACTOR *)scores; /* they take the places of scores that were read */
  int64_t behind = rounded_up(prompt, LANES);
  NAME(prefetch)(prompt_values, (prompt < AHEAD ? prompt : AHEAD) * D);
  NAME(cached_scores)(query, width, prompt_keys, prompt, D, scores, stride);
  for (int i = 0; i < count; i++) {
    float *row = scores + i * stride;
    int64_t n = behind + rounded_up(own[i], LANES);
    NAME(prefetch_next)(own_keys[i] + next[i], next_numbers[i]);
    NAME(cached_scores_of_one)(query + i * D, own_keys[i], own[i], D, row + behind);
    vec top = all(-INFINITY), sums = {0};
    for (int64_t j = 0; j < n; j += LANES) top = at_least(load_f32(row + j), top);
    float most = largest(top) * scale;
    for (int64_t j = 0; j < n; j += LANES) {
      int64_t left = j < behind ? prompt - j : own[i] - (j - behind);
      vec weight = first(left < LANES ? left : LANES, exponential(load_f32(row + j) * scale - most), (vec){0});
      sums += weight;
      NAME(store_factors)(weights + i * STEP * stride + j, weight);
    }
    total[i] = sum(sums);
  }
  memset(mixed, 0, sizeof mixed);
  NAME(add_cached_values)(weights, width, STEP * stride, prompt_values, prompt, D, mixed);
  for (int i = 0; i < count; i++) {
    NAME(prefetch_next)(own_values[i] + next[i], next_numbers[i]);
    NAME(add_cached_values_of_one)(weights + i * STEP * stride + behind, own_values[i], own[i], D, mixed + i * D);
    NAME(pack)(mixed + i * D, out[i], D, 1.f / total[i]);
  }
}

INLINE void NAME(decode_part)(NUMBER *qkv, int H, int K, int D, const float *table, const Rows *rows, int64_t block,
                              int k, const NUMBER *const *prompt_keys, const NUMBER *const *prompt_values, NUMBER *keys,
                              NUMBER *values, NUMBER *out, float *scores, int64_t stride) {
  int X = H + 2 * K, share = H / K, count = 0;
  FACTOR query[QUERY_BLOCK * D] __attribute__((aligned(64)));
  memset(query, 0, sizeof query);
  NUMBER *own_keys[QUERY_BLOCK], *own_values[QUERY_BLOCK], *to[QUERY_BLOCK];
  int64_t own[QUERY_BLOCK], next[QUERY_BLOCK], next_numbers[QUERY_BLOCK], all_rows = rows->block_row[rows->blocks];
  int64_t first = rows->block_row[block], last = rows->block_row[block + 1];
  int64_t prompt = rows->prompt_length[first];
  int64_t place = k * rounded_up(prompt, LANES) * D;
  const NUMBER *its_keys = prompt_keys[first] + place, *its_values = prompt_values[first] + place;
  NAME(prefetch)(its_keys, (prompt < AHEAD ? prompt : AHEAD) * D);
  for (int64_t r = first; r < last; r++) {
    int64_t newest = rows->stored[r] + rows->ahead;
    NAME(prefetch)(keys + ((rows->slot[r] * K + k) * rows->capacity + newest / LANES * LANES) * D, LANES * D);
  }
  for (int64_t r = first; r < last; r++) {
    NUMBER *token = qkv + r * X * D;
    int64_t newest = rows->stored[r] + rows->ahead;
    const float *angles = table + (rows->position[r] + rows->ahead) * D;
    NUMBER *own_key = keys + (rows->slot[r] * K + k) * rows->capacity * D;
    NUMBER *own_value = values + (rows->slot[r] * K + k) * rows->capacity * D;
    if (newest % LANES == 0) /* what an earlier row has left here may not be finite */
      memset(own_value + newest * D, 0, LANES * D * sizeof(NUMBER));
    NAME(rotate_head)(token + (H + k) * D, angles, D, 1.f);
    NAME(write_token)(own_key, own_value, newest, token + (H + k) * D, token + (H + K + k) * D, D);
    int64_t row = k + 1 < K ? r : r + last - first, head = k + 1 < K ? k + 1 : 0; /* of the next part */
    int64_t offset = row < all_rows ? ((rows->slot[row] - rows->slot[r]) * K + head - k) * rows->capacity * D : 0;
    int64_t tokens = row < all_rows ? rows->stored[row] + rows->ahead + 1 : 0;
    for (int h = k * share; h < (k + 1) * share; h++) {
      next[count] = offset;
      next_numbers[count] = h > k * share ? 0 : (tokens < AHEAD ? tokens : AHEAD) * D;
      NAME(rotate_head)(token + h * D, angles, D, 1.f);
      NAME(unpack)(token + h * D, query + count * D, D);
      own_keys[count] = own_key;
      own_values[count] = own_value;
      own[count] = newest + 1;
      to[count++] = out + (r * H + h) * D;
      if (count == QUERY_BLOCK || (r == last - 1 && h == (k + 1) * share - 1)) {
        if (count > QUERY_BLOCK / 2)
          NAME(decode_queries)(query, QUERY_BLOCK, count, D, its_keys, its_values, prompt, own_keys, own_values,
                               own, next, next_numbers, to, scores, stride);
        else
          NAME(decode_queries)(query, QUERY_BLOCK / 2, count, D, its_keys, its_values, prompt, own_keys, own_values,
                               own, next, next_numbers, to, scores, stride);
        count = 0;
      }
    }
  }
}

/* The same of a head size that is no constant here. */
static void NAME(decode_block)(NUMBER *qkv, int64_t H, int64_t K, int64_t D, const float *table, const Rows *rows,
                               int64_t block, int64_t k, const NUMBER *const *prompt_keys,
                               const NUMBER *const *prompt_values, NUMBER *keys, NUMBER *values, NUMBER *out,
                               float *scores, int64_t stride) {
  FOR_HEAD_SIZE(D, NAME(decode_part)(qkv, H, K, SIZE, table, rows, block, k, prompt_keys, prompt_values, keys, values,
                                     out, scores, stride))
}

/* Rotates the newest token of every row (B, X, D) in place, adds its keys and values to the cache, and attends:
 * out (B, H, D). Each row has the addresses of its prompt's keys and values. */
void NAME(decode)(NUMBER *qkv, int64_t H, int64_t K, int64_t D, const float *table, const Rows *rows,
                  const NUMBER *const *prompt_keys, const NUMBER *const *prompt_values, NUMBER *keys, NUMBER *values,
                  NUMBER *out, int threads) {
  int64_t stride = rounded_up(rows->longest, LANES) + 2 * LANES;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    float *scores = floats(QUERY_BLOCK * stride);
#pragma omp for schedule(guided)
    for (int64_t part = 0; part < rows->blocks * K; part++)
      NAME(decode_block)(qkv, H, K, D, table, rows, part / K, part % K, prompt_keys, prompt_values, keys, values, out,
                         scores, stride);
    free(scores);
  }
}
