#include <dlfcn.h>
#include <stdio.h>

int main(void) {
	if (!dlopen("libm.so.6", RTLD_LAZY)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	puts("opened libm.so.6");
	return 0;
}
