//go:build cgo && linux

package fake

// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
// #include <string.h>
// // A value as the library takes it, with what is not used of its room.
// struct value { uint32_t version; uint16_t field, type; int32_t status; uint32_t pad; int64_t ts, i; char room[4088]; };
// _Static_assert(sizeof(struct value) == 4120, "dcgmInjectFieldValue_v1");
// typedef int (*inject)(uintptr_t, unsigned, struct value *);
// static int call_inject(void *f, uintptr_t h, unsigned gpu, uint16_t field, int64_t ts, int64_t i) {
// 	struct value v;
// 	memset(&v, 0, sizeof v);
// 	v.version = 0x01001018, v.field = field, v.type = 'i', v.ts = ts, v.i = i;
// 	return ((inject)f)(h, gpu, &v);
// }
import "C"

import (
	"time"
	"unsafe"
)

// Inject has the engine at handle take a whole number as a sample of a field, by the test
// function of any libdcgm, a real one or the fake. It returns the library's result; ok is
// false where the library does not export the function.
func Inject(library string, handle uintptr, gpu uint32, field uint16, at time.Time, value int64) (result int, ok bool) {
	path, name := C.CString(library), C.CString("dcgmInjectFieldValue")
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(path, C.RTLD_NOW|C.RTLD_LOCAL) // it is loaded already
	if lib == nil {
		return 0, false
	}
	f := C.dlsym(lib, name)
	if f == nil {
		return 0, false
	}
	return int(C.call_inject(f, C.uintptr_t(handle), C.uint(gpu), C.uint16_t(field), C.int64_t(at.UnixMicro()), C.int64_t(value))), true
}
