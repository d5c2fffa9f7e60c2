/* C = A · B (+ D) of float32, for processors on which torch's products are slow. An element of C is summed in the
 * order of the inner index, whatever the other sizes and the number of threads.
 */
#define PANEL (2 * LANES) /* columns of C, and of B in a packed panel */
#define DEPTH 384         /* of the inner index; then sums go to C, so that rows of A and panels stay in caches */
#define TILE (LANES == 16 ? 12 : 6) /* rows of C whose sums stay in registers */
#define PART (TILE / 3)             /* the same of the last rows, of which fewer are computed one by one */

/* `rows` rows of C in the columns of a panel: products over `depth` added to `from`, or to 0 where it is NULL. */
INLINE void product_tile(int rows, const float *a, int64_t a_row, int64_t a_column, const float *panel, int64_t depth,
                         const float *from, float *c, int64_t N, int64_t width) {
  vec low[TILE], high[TILE];
  UNROLL
  for (int i = 0; i < rows; i++) low[i] = high[i] = (vec){0};
  for (int64_t k = 0; k < depth; k++) {
    vec b0 = load_f32(panel + k * PANEL), b1 = load_f32(panel + k * PANEL + LANES);
    UNROLL
    for (int i = 0; i < rows; i++) {
      low[i] += a[i * a_row + k * a_column] * b0;
      high[i] += a[i * a_row + k * a_column] * b1;
    }
  }
  UNROLL
  for (int i = 0; i < rows; i++) {
    if (from) low[i] += load_some_f32(from + i * N, width);
    if (from && width > LANES) high[i] += load_some_f32(from + i * N + LANES, width - LANES);
    store_some_f32(c + i * N, width, low[i]);
    store_some_f32(c + i * N + LANES, width - LANES, high[i]);
  }
}

#define PRODUCT_ROWS(rows) \
  (a_row == 1 ? product_tile(rows, at, 1, a_column, panel, depth, before, to, N, width) \
              : product_tile(rows, at, a_row, 1, panel, depth, before, to, N, width))

/* Strides are from row to row and from column to column; one of A's is 1. Rows of C and of D, which may be NULL,
 * lie side by side. */
void product_f32(const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row, int64_t b_column,
                 const float *d, float *c, int64_t M, int64_t N, int64_t K, int threads) {
  int64_t panels = (N + PANEL - 1) / PANEL, tiles = (M + TILE - 1) / TILE, most = K < DEPTH ? K : DEPTH;
  float *packed = floats(panels * most * PANEL);
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t begin = 0; begin < K; begin += DEPTH) {
    int64_t depth = K - begin < DEPTH ? K - begin : DEPTH;
    const float *from = begin ? c : d;
#pragma omp for
    for (int64_t p = 0; p < panels; p++)
      for (int64_t k = 0; k < depth; k++) {
        const float *at = b + (begin + k) * b_row + p * PANEL * b_column;
        float *to = packed + (p * most + k) * PANEL;
        int64_t width = N - p * PANEL;
        if (width >= PANEL && b_column == 1) memcpy(to, at, PANEL * sizeof(float));
        else
          for (int64_t n = 0; n < PANEL; n++) to[n] = n < width ? at[n * b_column] : 0.f;
      }
#pragma omp for
    for (int64_t t = 0; t < tiles; t++)
      for (int64_t p = 0; p < panels; p++) {
        const float *panel = packed + p * most * PANEL;
        int64_t end = (t + 1) * TILE < M ? (t + 1) * TILE : M, width = N - p * PANEL, rows;
        for (int64_t m = t * TILE; m < end; m += rows) {
          const float *at = a + m * a_row + begin * a_column, *before = from ? from + m * N + p * PANEL : NULL;
          float *to = c + m * N + p * PANEL;
          rows = end - m == TILE ? TILE : end - m >= PART ? PART : 1;
          if (rows == TILE) PRODUCT_ROWS(TILE);
          else if (rows == PART) PRODUCT_ROWS(PART);
          else PRODUCT_ROWS(1);
        }
      }
  }
  free(packed);
}
