/* Repeats recorded calls of kernels and writes what is in their buffers afterwards: replay_kernels LIBRARY < CALLS
 *
 * All numbers are int64. A call is a name of 32 bytes, the number of its arguments, and for each its kind:
 * 0 an integer; 1 a buffer: its number, its bytes, whether they follow, and they; 2 a float, as its bits;
 * 3 a struct: the number of its fields, which are integers and buffers; 4 a null pointer.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INTEGER, BUFFER, FLOAT, STRUCT, NOTHING, MOST_BUFFERS = 4096, MOST_ARGUMENTS = 16 };
static void *buffers[MOST_BUFFERS];

static void take(void *to, size_t bytes) {
  if (bytes && fread(to, bytes, 1, stdin) != 1) exit(2);
}
static int64_t number(void) { int64_t x; take(&x, sizeof x); return x; }

static void *buffer(int64_t *bytes) {
  int64_t id = number();
  *bytes = number();
  if (number()) {
    buffers[id] = aligned_alloc(64, (*bytes + 127) / 64 * 64);
    take(buffers[id], *bytes);
  }
  return buffers[id];
}

int main(int count, char **arguments) {
  void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  for (int64_t calls = number(); calls > 0; calls--) {
    char name[32];
    take(name, sizeof name);
    int64_t x[MOST_ARGUMENTS] = {0}, size[MOST_ARGUMENTS] = {0}, fields[MOST_ARGUMENTS][MOST_ARGUMENTS], n = number(), at = 0;
    float f = 0; /* the only one that a kernel takes; where it stands among the others makes no difference */
    void *kept[MOST_ARGUMENTS] = {0};
    for (int64_t i = 0; i < n; i++) {
      switch (number()) {
        case INTEGER: x[at++] = number(); break;
        case BUFFER: kept[at] = buffer(&size[at]); x[at] = (int64_t)kept[at]; at++; break;
        case FLOAT: { int64_t bits = number(); memcpy(&f, &bits, sizeof f); break; }
        case STRUCT: {
          int64_t parts = number(), bytes;
          for (int64_t p = 0; p < parts; p++)
            fields[at][p] = number() == INTEGER ? number() : (int64_t)buffer(&bytes);
          x[at] = (int64_t)fields[at]; at++;
          break;
        }
        default: x[at++] = 0;
      }
    }
    void (*call)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                 int64_t, int64_t, float);
    *(void **)&call = dlsym(library, name);
    if (!call) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    call(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12], x[13], f);
    for (int64_t i = 0; i < at; i++)
      if (kept[i]) fwrite(kept[i], size[i], 1, stdout);
  }
  return 0;
}
