/* A step of decoding of a small decoder, of one number type: the newest token of every row goes through all layers.
 * Rows are cut into chunks. One thread computes a chunk from its tokens to its logits: what it computes stays in the
 * caches, and no thread waits for another. A row is computed alike in every chunk.
 *
 * Matrices (N, K) are packed into panels of PANEL rows: (N / PANEL, K / STEP, PANEL, STEP), filled up with zeros.
 */
#ifndef CHUNK
#define CHUNK 24 /* rows at most: whole tiles of a product, and whole groups of the usual sizes */

/* Weights of one number type; a bias or a norm that the decoder does not have is NULL. */
typedef struct {
  const void *attention_norm, *qkv, *qkv_bias, *query_norm, *key_norm, *attention_out, *mlp_norm, *gate_up, *down;
} Layer;
typedef struct {
  int64_t layers, E, H, K, D, F, V;
  const Layer *layer;
  const void *embedding, *final_norm, *head;
} Weights;
#endif

/* Packs a matrix (N, K) into `panels`. */
void NAME(pack_panels)(const NUMBER *matrix, FACTOR *panels, int64_t N, int64_t K, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < (N + PANEL - 1) / PANEL; p++) {
    FACTOR *panel = panels + p * PANEL * K;
    int64_t width = N - p * PANEL < PANEL ? N - p * PANEL : PANEL;
    if (width < PANEL) memset(panel, 0, PANEL * K * sizeof(FACTOR));
    for (int64_t n = 0; n < width; n++) NAME(put_key)(panel + n * STEP, matrix + (p * PANEL + n) * K, PANEL, K);
  }
}

/* `rows` rows of a product in the columns of a panel, of which `width` are stored, with `add` if it is not NULL. */
INLINE void NAME(panel_tile)(int rows, const FACTOR *a, int64_t K, const FACTOR *panel, const NUMBER *add,
                             int64_t add_row, NUMBER *out, int64_t N, int64_t width) {
  vec low[TILE], high[TILE];
  UNROLL
  for (int i = 0; i < rows; i++) low[i] = high[i] = (vec){0};
  for (int64_t k = 0; k < K; k += STEP) {
    NAME(factors) b0 = NAME(load_factors)(panel + k * PANEL);
    NAME(factors) b1 = NAME(load_factors)(panel + k * PANEL + LANES * STEP);
    UNROLL
    for (int i = 0; i < rows; i++) {
      low[i] = NAME(add_product)(low[i], a + i * K + k, b0);
      high[i] = NAME(add_product)(high[i], a + i * K + k, b1);
    }
  }
  UNROLL
  for (int i = 0; i < rows; i++) {
    if (add) low[i] += NAME(load_some)(add + i * add_row, width);
    NAME(store_some)(out + i * N, width, low[i]);
    if (width <= LANES) continue;
    if (add) high[i] += NAME(load_some)(add + i * add_row + LANES, width - LANES);
    NAME(store_some)(out + i * N + LANES, width - LANES, high[i]);
  }
}

/* out (n, N) = a (n, K) · the packed matrix, + `add`, whose rows are `add_row` numbers apart, unless it is NULL. */
static void NAME(panel_product)(const NUMBER *a, int64_t n, int64_t K, const FACTOR *panels, const NUMBER *add,
                                int64_t add_row, NUMBER *out, int64_t N, FACTOR *factors) {
  for (int64_t i = 0; i < n; i++) NAME(unpack)(a + i * K, factors + i * K, K);
  for (int64_t column = 0; column < N; column += PANEL)
    for (int64_t i = 0, rows; i < n; i += rows) {
      const FACTOR *from = factors + i * K, *panel = panels + column * K;
      const NUMBER *added = add ? add + i * add_row + column : NULL;
      NUMBER *to = out + i * N + column;
      rows = n - i >= TILE ? TILE : n - i >= PART ? PART : 1;
      if (rows == TILE) NAME(panel_tile)(TILE, from, K, panel, added, add_row, to, N, N - column);
      else if (rows == PART) NAME(panel_tile)(PART, from, K, panel, added, add_row, to, N, N - column);
      else NAME(panel_tile)(1, from, K, panel, added, add_row, to, N, N - column);
    }
}

/* The workspace of a thread. All threads share `qkv` and `attended`, and a chunk uses its own rows of them. */
typedef struct {
  NUMBER *x, *normed, *qkv, *attended, *gate_up, *activated;
  FACTOR *factors;
  float *scores, *scale;
} NAME(Workspace);

/* The logits (n, V) behind the tokens of a chunk. */
static void NAME(step_chunk)(const int64_t *tokens, const Weights *w, float eps, const float *table, const Rows *rows,
                             const int64_t *places, int64_t first_block, int64_t last_block,
                             NAME(Workspace) work, int64_t stride, NUMBER *logits) {
  int64_t E = w->E, H = w->H, K = w->K, D = w->D, F = w->F, X = H + 2 * K;
  int64_t first = rows->block_row[first_block], n = rows->block_row[last_block] - first;
  NUMBER *qkv = work.qkv + first * X * D, *attended = work.attended + first * H * D;
  for (int64_t i = 0; i < n; i++)
    memcpy(work.x + i * E, (const NUMBER *)w->embedding + tokens[i] * E, E * sizeof(NUMBER));
  for (int64_t l = 0; l < w->layers; l++) {
    const Layer *layer = w->layer + l;
    const int64_t *place = places + 4 * l;
    NAME(rms_norm)(work.x, layer->attention_norm, work.normed, work.scale, n, E, eps, 1);
    NAME(panel_product)(work.normed, n, E, layer->qkv, layer->qkv_bias, 0, qkv, X * D, work.factors);
    for (int64_t i = 0; i < n && layer->query_norm; i++) {
      NUMBER *query = qkv + i * X * D, *key = query + H * D;
      NAME(rms_norm)(query, layer->query_norm, query, work.scale, H, D, eps, 1);
      NAME(rms_norm)(key, layer->key_norm, key, work.scale, K, D, eps, 1);
    }
    for (int64_t part = first_block * K; part < last_block * K; part++)
      NAME(decode_block)(work.qkv, H, K, D, table, rows, part / K, part % K, (const NUMBER *const *)place[0],
                         (const NUMBER *const *)place[1], (NUMBER *)place[2], (NUMBER *)place[3], work.attended,
                         work.scores, stride);
    NAME(panel_product)(attended, n, H * D, layer->attention_out, work.x, E, work.x, E, work.factors);
    NAME(rms_norm)(work.x, layer->mlp_norm, work.normed, work.scale, n, E, eps, 1);
    NAME(panel_product)(work.normed, n, E, layer->gate_up, NULL, 0, work.gate_up, 2 * F, work.factors);
    NAME(swiglu)(work.gate_up, work.activated, n, F, 1);
    NAME(panel_product)(work.activated, n, F, layer->down, work.x, E, work.x, E, work.factors);
  }
  NAME(rms_norm)(work.x, w->final_norm, work.normed, work.scale, n, E, eps, 1);
  NAME(panel_product)(work.normed, n, E, w->head, NULL, 0, logits, w->V, work.factors);
}

/* Fills in the logits (B, V) behind the newest token of each row, whose keys and values join the cache. `places` has,
 * for each layer, the addresses that `decode` takes: of those of the prompts' keys and values, and of the rows' own.
 * With `tokens` and `logprobs` (steps, B), draws one token from the logits and goes on with it, `steps` times: by
 * numbers `drawn` (steps, B) from softmax(scale · logits), or the most likely one if `drawn` is NULL.
 */
void NAME(decode_steps)(const int64_t *newest, const Weights *w, float eps, const float *table, const Rows *rows,
                        const int64_t *places, NUMBER *logits, int64_t steps, float scale, const float *drawn,
                        int64_t *tokens, float *logprobs, int threads) {
  int64_t E = w->E, F = w->F, V = w->V, HD = w->H * w->D, XD = HD + 2 * w->K * w->D, B = rows->block_row[rows->blocks];
  int64_t chunks = (B + threads * CHUNK - 1) / (threads * CHUNK) * threads; /* as many for each thread */
  int64_t most = CHUNK + PART + QUERY_BLOCK; /* the last block may lie in the next chunk */
  int64_t inner = HD > F ? HD : F, stride = rounded_up(rows->longest, LANES) + 2 * LANES;
  inner = inner > E ? inner : E;
  NUMBER *whole = (NUMBER *)floats(B * (XD + HD));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    NUMBER *part = (NUMBER *)floats(most * (2 * E + 3 * F));
    NAME(Workspace) work = {.x = part, .normed = part + most * E, .gate_up = part + most * 2 * E,
                            .activated = part + most * (2 * E + 2 * F), .qkv = whole, .attended = whole + B * XD,
                            .factors = (FACTOR *)floats(most * inner), .scores = floats(QUERY_BLOCK * stride),
                            .scale = floats(most + w->H)};
    Rows now = *rows;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks; c++) { /* the blocks whose first row is among its rows */
      int64_t begin = B * c / chunks / PART * PART, end = c + 1 < chunks ? B * (c + 1) / chunks / PART * PART : B;
      int64_t first = 0, last, row, n;
      while (first < rows->blocks && rows->block_row[first] < begin) first++;
      for (last = first; last < rows->blocks && rows->block_row[last] < end; last++) continue;
      row = rows->block_row[first];
      n = rows->block_row[last] - row;
      NUMBER *own = logits + row * V;
      for (int64_t s = 0, at = row; s < steps; s++, at += B) {
        now.ahead = s;
        NAME(step_chunk)(s ? tokens + at - B : newest + row, w, eps, table, &now, places, first, last, work, stride,
                         own);
        if (tokens && !drawn) NAME(choose_most_likely)(own, tokens + at, logprobs + at, n, V, 1);
        else if (tokens) NAME(choose)(own, scale, drawn + at, tokens + at, logprobs + at, n, V, 1);
      }
    }
    free(work.scale);
    free(work.scores);
    free(work.factors);
    free(part);
  }
  free(whole);
}
