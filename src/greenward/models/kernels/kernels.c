/* Kernels of small decoders on CPUs, called by `native.py`, with the torch operations of `decoder.py` and
 * `attention.py` as their oracle. Each comes for float32 and for bfloat16.
 *
 * Letters in comments: M tokens, E hidden size, H query heads, K key heads, X = H + 2K, D head dimension.
 * Work is divided into parts that do not depend on the number of threads, and so are the results.
 */
#include "vectors.h"

/* Groups of a batch: a prompt and its rows, as runs of consecutive tokens. */
typedef struct {
  int64_t groups;
  const int64_t *prompt_start, *prompt_length; /* of each group */
  const int64_t *first_row;                    /* of each group, and one behind the last */
  const int64_t *row_start, *row_length;       /* of each row */
  int64_t longest;                             /* prompt and own tokens of a row */
} Layout;

/* One step of decoding: each row's newest token over its prompt and its own tokens before. */
typedef struct {
  int64_t blocks;                /* of neighbouring rows of one group */
  const int64_t *block_row;      /* their first rows, and one behind the last */
  const int64_t *slot;           /* of each row: its place in the cache */
  const int64_t *position;       /* of each row */
  const int64_t *stored;         /* of each row: the tokens that it has in its place */
  const int64_t *prompt_length;  /* of each row */
  int64_t capacity;              /* tokens of a place in the cache, a multiple of LANES */
  int64_t longest;               /* prompt and own tokens of a row */
  int64_t ahead;                 /* as many tokens were drawn since these numbers were right */
} Rows;

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(name) PASTE(name, TYPE)

#define NUMBER float
#define TYPE f32
#define FACTOR float
#define STEP 1
#include "elementwise.h"
#include "factors.h"
#include "attention.h"
#include "decoding.h"
#include "products.h"
#include "step.h"
#undef LOAD
#undef STORE
#undef NUMBER
#undef TYPE
#define NUMBER bf16
#define TYPE bf16
#ifdef __AVX512BF16__
#undef FACTOR
#undef STEP
#define FACTOR bf16
#define STEP 2
#endif
#include "elementwise.h"
#include "factors.h"
#include "attention.h"
#include "decoding.h"
#include "step.h"
