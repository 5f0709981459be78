/* MKL, which PyTorch's CPU build uses, picks its AVX2 kernels only where it finds this answer; on AMD it is faster with
 * them (64 x 64 batches 1.8 times, products with 32 columns 1.4 times). Optional:
 *     cc -shared -fPIC -o mkl_on_amd.so mkl_on_amd.c    then    LD_PRELOAD=./mkl_on_amd.so python train.py ... */
int mkl_serv_intel_cpu_true(void) { return 1; }
