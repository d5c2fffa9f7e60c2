/* RMSNorm, SwiGLU and rotation of one number type. Sizes of rows are multiples of LANES. */
#define LOAD PASTE(load, TYPE)
#define STORE PASTE(store, TYPE)
#ifndef ROWS
#define ROWS 256 /* of a part whose share of the weight's gradient is summed first */
#endif

/* y = x / rms(x) * weight, and scale = 1 / rms(x) of each row. */
void NAME(rms_norm)(const NUMBER *x, const NUMBER *weight, NUMBER *y, float *scale, int64_t M, int64_t E,
                    float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t m = 0; m < M; m++) {
    const NUMBER *row = x + m * E;
    vec squares = {0};
    for (int64_t e = 0; e < E; e += LANES) { vec v = LOAD(row + e); squares += v * v; }
    scale[m] = 1.f / sqrtf(sum(squares) / E + eps);
    for (int64_t e = 0; e < E; e += LANES) STORE(y + m * E + e, LOAD(row + e) * scale[m] * LOAD(weight + e));
  }
}

/* dx = s g w - x s³ mean(g w x) and dw = Σ s g x for s = scale; dw may be NULL. */
void NAME(rms_norm_backward)(const NUMBER *grad, const NUMBER *x, const NUMBER *weight, const float *scale,
                             NUMBER *dx, float *dw, int64_t M, int64_t E, int threads) {
  int64_t parts = (M + ROWS - 1) / ROWS;
  float *partial = dw ? floats(parts * E) : NULL;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < parts; part++) {
    float *own = dw ? partial + part * E : NULL;
    if (own) memset(own, 0, E * sizeof(float));
    for (int64_t m = part * ROWS; m < M && m < (part + 1) * ROWS; m++) {
      const NUMBER *row = x + m * E, *g = grad + m * E;
      vec slope = {0};
      for (int64_t e = 0; e < E; e += LANES) slope += LOAD(g + e) * LOAD(weight + e) * LOAD(row + e);
      float s = scale[m], factor = sum(slope) * s * s * s / E;
      for (int64_t e = 0; e < E; e += LANES) {
        vec G = LOAD(g + e), X = LOAD(row + e);
        STORE(dx + m * E + e, G * LOAD(weight + e) * s - X * factor);
        if (own) store_f32(own + e, load_f32(own + e) + G * X * s);
      }
    }
  }
  if (!dw) return;
  memset(dw, 0, E * sizeof(float));
  for (int64_t part = 0; part < parts; part++)
    for (int64_t e = 0; e < E; e++) dw[e] += partial[part * E + e];
  free(partial);
}

/* out = silu(gate) * up for rows of gate and, behind it, up. */
void NAME(swiglu)(const NUMBER *gate_up, NUMBER *out, int64_t M, int64_t F, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t m = 0; m < M; m++)
    for (int64_t f = 0; f < F; f += LANES) {
      vec g = LOAD(gate_up + 2 * m * F + f);
      STORE(out + m * F + f, g / (1.f + exponential(-g)) * LOAD(gate_up + (2 * m + 1) * F + f));
    }
}

void NAME(swiglu_backward)(const NUMBER *grad, const NUMBER *gate_up, NUMBER *dgate_up, int64_t M, int64_t F,
                           int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t m = 0; m < M; m++)
    for (int64_t f = 0; f < F; f += LANES) {
      int64_t gate = 2 * m * F + f, up = gate + F;
      vec g = LOAD(gate_up + gate), d = LOAD(grad + m * F + f), share = 1.f / (1.f + exponential(-g));
      vec silu = g * share;
      STORE(dgate_up + up, silu * d);
      STORE(dgate_up + gate, d * LOAD(gate_up + up) * (silu * (1.f - share) + share));
    }
}

/* Rotates the half-split pairs of one head; a negative `sign` rotates back. `table` has D/2 cosines, then sines. */
INLINE void NAME(rotate_head)(NUMBER *head, const float *table, int64_t D, float sign) {
  int half = D / 2;
  if (half % LANES) {
    for (int d = 0; d < half; d++) {
      float a = PASTE(number, TYPE)(head[d]), b = PASTE(number, TYPE)(head[d + half]);
      NUMBER out[LANES];
      STORE(out, all(a * table[d] - b * (sign * table[half + d])));
      head[d] = out[0];
      STORE(out, all(b * table[d] + a * (sign * table[half + d])));
      head[d + half] = out[0];
    }
    return;
  }
  for (int d = 0; d < half; d += LANES) {
    vec a = LOAD(head + d), b = LOAD(head + half + d);
    vec cosine = load_f32(table + d), sine = load_f32(table + half + d) * sign;
    STORE(head + d, a * cosine - b * sine);
    STORE(head + half + d, b * cosine + a * sine);
  }
}

/* Rotates the first `heads` of the X heads of every token, in place. */
void NAME(rotate)(NUMBER *tokens, const int64_t *positions, const float *table, int64_t M, int64_t X, int64_t heads, int64_t D,
                  float sign, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t m = 0; m < M; m++)
    for (int h = 0; h < heads; h++)
      NAME(rotate_head)(tokens + (m * X + h) * D, table + positions[m] * D, D, sign);
}

/* Up to LANES numbers of a row whose length is any. */
INLINE vec NAME(load_some)(const NUMBER *from, int64_t n) {
  if (n >= LANES) return LOAD(from);
  NUMBER part[LANES] = {0};
  memcpy(part, from, n * sizeof(NUMBER));
  return LOAD(part);
}
INLINE void NAME(store_some)(NUMBER *to, int64_t n, vec x) {
  NUMBER part[LANES];
  if (n >= LANES) { STORE(to, x); return; }
  STORE(part, x);
  if (n > 0) memcpy(to, part, n * sizeof(NUMBER));
}

/* Of each row of logits (S, V) times `scale`: log-sum-exp, entropy, and the log-probability of its target. */
void NAME(score)(const NUMBER *logits, const int64_t *targets, float scale, float *logprob, float *lse, float *entropy,
                 int64_t S, int64_t V, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t s = 0; s < S; s++) {
    const NUMBER *row = logits + s * V;
    vec most = all(-INFINITY), total = {0}, mean = {0};
    for (int64_t v = 0; v < V; v += LANES) {
      vec x = NAME(load_some)(row + v, V - v) * scale;
      most = at_least(first(V - v < LANES ? V - v : LANES, x, most), most);
    }
    float top = largest(most);
    for (int64_t v = 0; v < V; v += LANES) {
      vec x = NAME(load_some)(row + v, V - v) * scale - top;
      vec weight = first(V - v < LANES ? V - v : LANES, exponential(x), (vec){0});
      total += weight;
      mean += weight * x;
    }
    float sums = sum(total);
    lse[s] = top + logf(sums);
    entropy[s] = logf(sums) - sum(mean) / sums;
    logprob[s] = PASTE(number, TYPE)(row[targets[s]]) * scale - lse[s];
  }
}

/* Of each row of logits (B, V): the token that a number in [0, 1) draws from softmax(scale · logits), by the running
 * sum of the chances, and its log-probability. */
void NAME(choose)(const NUMBER *logits, float scale, const float *drawn, int64_t *tokens, float *logprobs, int64_t B,
                  int64_t V, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    float *weights = floats(rounded_up(V, LANES));
#pragma omp for
    for (int64_t b = 0; b < B; b++) {
      const NUMBER *row = logits + b * V;
      vec most = all(-INFINITY);
      for (int64_t v = 0; v < V; v += LANES) {
        vec x = NAME(load_some)(row + v, V - v) * scale;
        most = at_least(first(V - v < LANES ? V - v : LANES, x, most), most);
      }
      float top = largest(most);
      double total = 0, seen = 0;
      for (int64_t v = 0; v < V; v += LANES) {
        vec x = NAME(load_some)(row + v, V - v) * scale - top, weight = choose(x < -87.f, (vec){0}, exponential(x));
        store_f32(weights + v, first(V - v < LANES ? V - v : LANES, weight, (vec){0}));
        total += sum(load_f32(weights + v));
      }
      int64_t token = 0, last = V - 1;
      for (double part; token + LANES <= last; token += LANES, seen += part) {
        part = sum(load_f32(weights + token));
        if (seen + part > drawn[b] * total) break;
      }
      while (last > token && weights[last] == 0) last--; /* chances of 0 are never drawn, whatever was rounded */
      for (seen += weights[token]; token < last && seen <= drawn[b] * total;) seen += weights[++token];
      tokens[b] = token;
      logprobs[b] = PASTE(number, TYPE)(row[token]) * scale - top - (float)log(total);
    }
    free(weights);
  }
}

/* Of each row of logits (B, V): the first of the largest, and its log-probability. */
void NAME(choose_most_likely)(const NUMBER *logits, int64_t *tokens, float *logprobs, int64_t B, int64_t V, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t b = 0; b < B; b++) {
    const NUMBER *row = logits + b * V;
    vec most = all(-INFINITY), total = {0};
    for (int64_t v = 0; v < V; v += LANES) {
      vec x = NAME(load_some)(row + v, V - v);
      most = at_least(first(V - v < LANES ? V - v : LANES, x, most), most);
    }
    float top = largest(most);
    int64_t token = 0;
    while (token < V - 1 && !(PASTE(number, TYPE)(row[token]) >= top)) token++;
    for (int64_t v = 0; v < V; v += LANES) {
      vec x = NAME(load_some)(row + v, V - v) - top;
      total += first(V - v < LANES ? V - v : LANES, choose(x < -87.f, (vec){0}, exponential(x)), (vec){0});
    }
    tokens[b] = token;
    logprobs[b] = -logf(sum(total));
  }
}

/* d logit = scale (g [target] - p (g + e (log p + entropy))) for the gradients g of log-probabilities and e of
 * entropies, which may be NULL. */
void NAME(score_backward)(const NUMBER *logits, const int64_t *targets, float scale, const float *lse,
                          const float *entropy, const float *grad, const float *grad_entropy, NUMBER *dlogits,
                          int64_t S, int64_t V, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t s = 0; s < S; s++) {
    const NUMBER *row = logits + s * V;
    NUMBER *out = dlogits + s * V;
    float g = grad ? grad[s] : 0.f, e = grad_entropy ? grad_entropy[s] : 0.f, h = entropy[s], log_sum = lse[s];
    for (int64_t v = 0; v < V; v += LANES) {
      vec logp = NAME(load_some)(row + v, V - v) * scale - log_sum;
      vec slope = exponential(logp) * (g + e * (logp + h)) * -scale;
      int64_t at = targets[s] - v;
      if (at >= 0 && at < LANES) slope[at] += scale * g;
      NAME(store_some)(out + v, V - v, slope);
    }
  }
}
