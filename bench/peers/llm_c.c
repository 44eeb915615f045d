// Trains what peer_input wrote with the functions of llm.c, of which the user has a checkout:
//
//   bench/peers/setup --llm-c FOLDER                      builds this with FOLDER/train_gpt2.c inside
//   llm_c                                                 prints the version of checkpoints it reads
//   llm_c CHECKPOINT TOKENS BATCH LENGTH STEPS [--paced]  trains, printing as gpt2_torch.py does
//
// CHECKPOINT is a model in llm.c's format, TOKENS is peer_input's tokens.bin. llm.c neither clips nor
// leaves vectors undecayed, which is a little less work; the loss of the first step is the same.
#define TESTING  // leaves out its main
#include "train_gpt2.c"

#ifdef HEADRACE_PADDED
#define CHECKPOINT_VERSION 3
#else
#define CHECKPOINT_VERSION 1
#endif

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc == 1) {
    printf("%d\n", CHECKPOINT_VERSION);
    return 0;
  }
  if (argc < 6) {
    fprintf(stderr, "usage: llm_c CHECKPOINT TOKENS BATCH LENGTH STEPS [--paced]\n");
    return 2;
  }
  const int batch = atoi(argv[3]), length = atoi(argv[4]), steps = atoi(argv[5]);
  const int paced = argc > 6 && strcmp(argv[6], "--paced") == 0;
  FILE* const tokens = fopen(argv[2], "rb");
  if (tokens == NULL) {
    fprintf(stderr, "llm_c: cannot open %s\n", argv[2]);
    return 1;
  }
  GPT2 model;
  gpt2_build_from_checkpoint(&model, argv[1]);
  printf("{\"peer\": \"llm.c\"}\n");
  fflush(stdout);
  int* const ids = malloc(sizeof(int) * batch * length);
  int* const targets = malloc(sizeof(int) * batch * length);
  int* const row = malloc(sizeof(int) * (length + 1));
  char line[16];
  for (int step = 1; step <= steps; ++step) {
    if (paced && fgets(line, sizeof(line), stdin) == NULL) break;
    for (int b = 0; b < batch; ++b) {
      if (fread(row, sizeof(int), length + 1, tokens) != (size_t)length + 1) {
        fprintf(stderr, "llm_c: %s ends in step %d\n", argv[2], step);
        return 1;
      }
      memcpy(ids + b * length, row, sizeof(int) * length);
      memcpy(targets + b * length, row + 1, sizeof(int) * length);
    }
    const double start = Seconds();
    gpt2_forward(&model, ids, targets, batch, length);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.1f, step);
    printf("{\"step\": %d, \"loss\": %.9g, \"seconds\": %.9g}\n", step, model.mean_loss,
           Seconds() - start);
    fflush(stdout);
  }
  return 0;
}
