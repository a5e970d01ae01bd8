/* The least that a program does for a result on a GPU, which it prints: what a process with the provider is compared with.
 * bare FILE: FILE has the code of the kernel that fills elements of four bytes (`ep-gpu-bench --kernel`). Nothing of a
 * toolkit is needed to build it: cc -O2 bare.c -ldl */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *Handle;
typedef unsigned long long u64;

/* As Args of fill.cu. */
struct Args { u64 count, dst, src, value[2]; };

static Handle driver;

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) { fprintf(stderr, "the driver has no %s\n", name); exit(1); }
    return function;
}

static void check(const char *call, int result) {
    if (result) { fprintf(stderr, "%s: %d\n", call, result); exit(1); }
}

int main(int count, char **words) {
    if (count != 2) { fprintf(stderr, "usage: bare FILE\n"); return 2; }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    FILE *file = fopen(words[1], "rb");
    if (!file) { perror(words[1]); return 1; }
    static char code[1 << 20];
    if (fread(code, 1, sizeof code, file) == sizeof code) { fprintf(stderr, "the code is too long\n"); return 1; }
    fclose(file);
    int (*init)(unsigned) = find("cuInit");
    int (*device)(int *, int) = find("cuDeviceGet");
    int (*retain)(Handle *, int) = find("cuDevicePrimaryCtxRetain");
    int (*enter)(Handle) = find("cuCtxSetCurrent");
    int (*load)(Handle *, const void *) = find("cuModuleLoadData");
    int (*function_of)(Handle *, Handle, const char *) = find("cuModuleGetFunction");
    int (*allocate)(u64 *, size_t) = find("cuMemAlloc_v2");
    int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **) =
        find("cuLaunchKernel");
    int (*read)(void *, u64, size_t) = find("cuMemcpyDtoH_v2");
    int number;
    Handle context, module, function;
    u64 memory;
    check("cuInit", init(0));
    check("cuDeviceGet", device(&number, 0));
    check("cuDevicePrimaryCtxRetain", retain(&context, number));
    check("cuCtxSetCurrent", enter(context));
    check("cuModuleLoadData", load(&module, code));
    check("cuModuleGetFunction", function_of(&function, module, "ep_fill"));
    check("cuMemAlloc", allocate(&memory, 16));
    struct Args args = {4, memory, 0, {0x3fc00000, 0}};
    void *params[] = {&args};
    check("cuLaunchKernel", launch(function, 1, 1, 1, 256, 1, 1, 0, 0, params, 0));
    float result[4];
    check("cuMemcpyDtoH", read(result, memory, sizeof result));
    for (int i = 0; i < 4; ++i)
        if (result[i] != 1.5f) { fprintf(stderr, "a fill with 1.5 gave %g\n", result[i]); return 1; }
    printf("%g\n", result[0]);
    fflush(stdout);
    return 0;
}
