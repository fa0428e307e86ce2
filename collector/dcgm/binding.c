//go:build cgo && linux

#include "binding.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

// Every function that is used, with its parameters. One that is missing fails when it
// is called: older libraries lack some.
#define FUNCTIONS(F)                                                                                                   \
	F(init, dcgmInit, (void))                                                                                      \
	F(library_version, dcgmVersionInfo, (struct abi_version_info *))                                               \
	F(connect, dcgmConnect_v2, (const char *, struct abi_connect *, uintptr_t *))                                  \
	F(disconnect, dcgmDisconnect, (uintptr_t))                                                                     \
	F(embed, dcgmStartEmbedded_v2, (struct abi_embedded *))                                                        \
	F(unembed, dcgmStopEmbedded, (uintptr_t))                                                                      \
	F(version, dcgmHostengineVersionInfo, (uintptr_t, struct abi_version_info *))                                  \
	F(entities, dcgmGetEntityGroupEntities, (uintptr_t, uint32_t, uint32_t *, int *, uint32_t))                    \
	F(gpu_status, dcgmGetGpuStatus, (uintptr_t, uint32_t, uint32_t *))                                             \
	F(attributes, dcgmGetDeviceAttributes, (uintptr_t, uint32_t, struct abi_attributes *))                         \
	F(hierarchy, dcgmGetGpuInstanceHierarchy, (uintptr_t, struct abi_mig_hierarchy *))                             \
	F(group_create, dcgmGroupCreate, (uintptr_t, uint32_t, const char *, uintptr_t *))                             \
	F(group_add, dcgmGroupAddEntity, (uintptr_t, uintptr_t, uint32_t, uint32_t))                                   \
	F(group_destroy, dcgmGroupDestroy, (uintptr_t, uintptr_t))                                                     \
	F(fields_create, dcgmFieldGroupCreate, (uintptr_t, int, const uint16_t *, const char *, uintptr_t *))          \
	F(fields_destroy, dcgmFieldGroupDestroy, (uintptr_t, uintptr_t))                                               \
	F(watch, dcgmWatchFields, (uintptr_t, uintptr_t, uintptr_t, int64_t, double, int))                             \
	F(unwatch, dcgmUnwatchFields, (uintptr_t, uintptr_t, uintptr_t))                                               \
	F(latest, dcgmEntitiesGetLatestValues,                                                                         \
	  (uintptr_t, const struct abi_pair *, uint32_t, const uint16_t *, uint32_t, uint32_t, struct abi_value_v2 *)) \
	F(since, dcgmGetValuesSince_v2, (uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t *, abi_values_cb, void *))  \
	F(health_set, dcgmHealthSet, (uintptr_t, uintptr_t, uint32_t))                                                 \
	F(health, dcgmHealthCheck, (uintptr_t, uintptr_t, void *))                                                     \
	F(peers, dcgmGetNvLinkP2PStatus, (uintptr_t, struct abi_peers *))                                              \
	F(policy_set, dcgmPolicySet, (uintptr_t, uintptr_t, struct abi_policy *, uintptr_t))                           \
	F(policy_register, dcgmPolicyRegister_v2, (uintptr_t, uintptr_t, uint32_t, abi_policy_cb, uint64_t))           \
	F(policy_register_v1, dcgmPolicyRegister, (uintptr_t, uintptr_t, uint32_t, abi_policy_cb_v1, abi_policy_cb_v1)) \
	F(links, dcgmGetNvLinkLinkStatus, (uintptr_t, void *))                                                         \
	F(cpus, dcgmGetCpuHierarchy, (uintptr_t, struct abi_cpus *))                                                   \
	F(policy_unregister, dcgmPolicyUnregister, (uintptr_t, uintptr_t, uint32_t))

struct dcgm {
	void *library;
	void *health_room; // the answer of a health check is 1 MB
	struct abi_field *(*field)(uint16_t);
	int wake;          // an eventfd that is never closed: the library may write to it at any time
#define MEMBER(name, symbol, parameters) int(*name) parameters;
	FUNCTIONS(MEMBER)
#undef MEMBER
};

#define CALL(f, ...) (d->f ? d->f(__VA_ARGS__) : DCGM_NO_SYMBOL)

struct dcgm *dcgm_open(const char *path, char **error) {
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		*error = strdup(why ? why : "dlopen gave no reason");
		return NULL;
	}
	struct dcgm *d = calloc(1, sizeof *d);
	if (!d) {
		*error = strdup("no memory");
		dlclose(library);
		return NULL;
	}
	d->library = library;
	d->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	// On the handle alone: errorString and the like are plain names.
#define LOOK(name, symbol, parameters) *(void **)&d->name = dlsym(library, #symbol);
	FUNCTIONS(LOOK)
#undef LOOK
	*(void **)&d->field = dlsym(library, "DcgmFieldGetById");
	return d;
}

// The library stays loaded: its threads may be in it.
void dcgm_close(struct dcgm *d) {
	free(d->health_room);
	free(d);
}

int dcgm_init(struct dcgm *d) { return CALL(init); }

int dcgm_library_version(struct dcgm *d, struct abi_version_info *out) {
	out->version = ABI_VERSION(*out, 2);
	return CALL(library_version, out);
}

int dcgm_connect(struct dcgm *d, const char *address, int unix_socket, uint32_t timeout_ms, uintptr_t *h) {
	struct abi_connect p = {.version = ABI_VERSION(p, 2), .timeout_ms = timeout_ms, .unix_socket = unix_socket != 0};
	return CALL(connect, address, &p, h);
}

int dcgm_disconnect(struct dcgm *d, uintptr_t h) { return CALL(disconnect, h); }

int dcgm_embed(struct dcgm *d, uintptr_t *h) {
	struct abi_embedded p = {.version = ABI_VERSION(p, 1), .mode = 1};
	int r = CALL(embed, &p);
	*h = p.handle;
	return r;
}

int dcgm_unembed(struct dcgm *d, uintptr_t h) { return CALL(unembed, h); }

int dcgm_version(struct dcgm *d, uintptr_t h, struct abi_version_info *out) {
	out->version = ABI_VERSION(*out, 2);
	return CALL(version, h, out);
}

int dcgm_entities(struct dcgm *d, uintptr_t h, uint32_t group, uint32_t *ids, int *n, uint32_t flags) {
	return CALL(entities, h, group, ids, n, flags);
}

int dcgm_gpu_status(struct dcgm *d, uintptr_t h, uint32_t gpu, uint32_t *status) {
	return CALL(gpu_status, h, gpu, status);
}

int dcgm_attributes(struct dcgm *d, uintptr_t h, uint32_t gpu, struct abi_attributes *out) {
	memset(out, 0, sizeof *out);
	out->version = ABI_VERSION(*out, 3);
	return CALL(attributes, h, gpu, out);
}

int dcgm_hierarchy(struct dcgm *d, uintptr_t h, struct abi_mig_hierarchy *out) {
	memset(out, 0, sizeof *out);
	out->version = ABI_VERSION(*out, 2);
	return CALL(hierarchy, h, out);
}

uint32_t dcgm_level(struct dcgm *d, uint16_t field) {
	const struct abi_field *f = d->field ? d->field(field) : NULL;
	return f ? f->level : 1;
}

// links_of adds the links of one GPU or switch, whose states begin at state.
static void links_of(const char *state, uint32_t count, uint32_t group, uint32_t parent, struct dcgm_link *out, uint32_t room, uint32_t *n) {
	for (uint32_t k = 0; k < count; k++) {
		uint32_t s;
		memcpy(&s, state + 4 * k, 4);
		if (s == 0)
			continue; // there is no such link
		if (*n < room)
			out[*n] = (struct dcgm_link){group, parent, k, s == ABI_LINK_UP};
		++*n;
	}
}

int dcgm_links(struct dcgm *d, uintptr_t h, struct dcgm_link *out, uint32_t room, uint32_t *n) {
	*n = 0;
	int code = DCGM_NO_SYMBOL;
	for (size_t k = 0; k < sizeof abi_links / sizeof abi_links[0]; k++) {
		const struct abi_links *l = &abi_links[k];
		char *all = calloc(1, l->size);
		if (!all)
			return DCGM_NO_SYMBOL;
		memcpy(all, &l->version, 4);
		code = CALL(links, h, all);
		if (code == 0) {
			const char *at = all + 8;
			uint32_t size = 4 + 4 * l->gpu_links, count, id;
			memcpy(&count, all + 4, 4);
			for (uint32_t g = 0; g < count && g < ABI_LINK_GPUS; g++) {
				memcpy(&id, at + g * size, 4);
				links_of(at + g * size + 4, l->gpu_links, 1, id, out, room, n);
			}
			at += ABI_LINK_GPUS * size;
			size = 4 + 4 * l->switch_links;
			memcpy(&count, at, 4);
			for (uint32_t s = 0; s < count && s < ABI_LINK_SWITCHES; s++) {
				memcpy(&id, at + 4 + s * size, 4);
				links_of(at + 4 + s * size + 4, l->switch_links, 3, id, out, room, n);
			}
		}
		free(all);
		if (code != -12)
			return code;
	}
	return code;
}

int dcgm_cpus(struct dcgm *d, uintptr_t h, struct abi_cpus *out) {
	memset(out, 0, sizeof *out);
	out->version = ABI_VERSION(*out, 1);
	return CALL(cpus, h, out);
}

int dcgm_group_create(struct dcgm *d, uintptr_t h, const char *name, uintptr_t *group) {
	return CALL(group_create, h, 1, name, group); // 1: empty
}

int dcgm_group_add(struct dcgm *d, uintptr_t h, uintptr_t group, uint32_t entity_group, uint32_t entity) {
	return CALL(group_add, h, group, entity_group, entity);
}

int dcgm_group_destroy(struct dcgm *d, uintptr_t h, uintptr_t group) { return CALL(group_destroy, h, group); }

int dcgm_fields_create(struct dcgm *d, uintptr_t h, int n, const uint16_t *ids, const char *name, uintptr_t *fields) {
	return CALL(fields_create, h, n, ids, name, fields);
}

int dcgm_fields_destroy(struct dcgm *d, uintptr_t h, uintptr_t fields) { return CALL(fields_destroy, h, fields); }

int dcgm_watch(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields, int64_t every_us, double keep_s, int keep_n) {
	return CALL(watch, h, group, fields, every_us, keep_s, keep_n);
}

int dcgm_unwatch(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields) {
	return CALL(unwatch, h, group, fields);
}

int dcgm_health_set(struct dcgm *d, uintptr_t h, uintptr_t group, uint32_t systems) {
	return CALL(health_set, h, group, systems);
}

int dcgm_health(struct dcgm *d, uintptr_t h, uintptr_t group, struct dcgm_incident *out, uint32_t room, uint32_t *n) {
	if (!d->health_room && !(d->health_room = malloc(sizeof(struct abi_health_v5))))
		return DCGM_NO_SYMBOL;
	struct abi_health_v5 *r = d->health_room;
	memset(r, 0, offsetof(struct abi_health_v5, incidents));
	r->version = ABI_VERSION(struct abi_health_v5, 5);
	uint32_t most = sizeof r->incidents / sizeof r->incidents[0];
	int code = CALL(health, h, group, r);
	if (code == -12) { // DCGM 3
		r->version = ABI_VERSION(struct abi_health_v4, 4);
		most = sizeof((struct abi_health_v4 *)0)->incidents / sizeof r->incidents[0];
		code = CALL(health, h, group, r);
	}
	*n = r->count < most ? r->count : most;
	for (uint32_t k = 0; code == 0 && k < *n && k < room; k++) {
		const struct abi_incident *x = &r->incidents[k];
		out[k] = (struct dcgm_incident){x->entity, x->system, x->health, x->code};
	}
	return code;
}

int dcgm_peers(struct dcgm *d, uintptr_t h, struct abi_peers *out) {
	memset(out, 0, sizeof *out); // no count: of all GPUs
	out->version = ABI_VERSION(*out, 1);
	return CALL(peers, h, out);
}

// is_blank looks at a value whose status is fine: it may still say that there is none.
static int is_blank(uint16_t type, int64_t i, double d, const char *s) {
	switch (type) {
	case 'i':
	case 't':
		return i >= 0x7ffffffffffffff0;
	case 'd':
		return !(d < 140737488355328.0); // 2^47; not a number is none either
	case 's':
		return strncmp(s, "<<<", 3) == 0 && memmem(s, 256, ">>>", 3) != NULL;
	}
	return 0;
}

static void sample_of(const struct abi_value_v2 *v, uint32_t place, struct dcgm_sample *out) {
	*out = (struct dcgm_sample){
	    .group = v->group, .entity = v->entity, .field = v->field, .type = v->type, .status = v->status, .ts = v->ts, .place = place};
	if (v->type == 'd')
		out->d = v->v.d;
	else
		out->i = v->v.i;
	out->blank = is_blank(v->type, v->v.i, v->v.d, v->v.s);
}

// room makes room for n more and returns 0 if there is none.
static int room(struct dcgm_samples *s, uint32_t n) {
	if (s->n + n <= s->room)
		return 1;
	uint32_t want = s->room ? 2 * s->room : 256;
	if (want < s->n + n)
		want = s->n + n;
	if (want > s->limit)
		want = s->limit;
	if (s->n + n > want)
		return 0;
	struct dcgm_sample *all = realloc(s->all, want * sizeof *all);
	if (!all)
		return 0;
	s->all = all;
	s->room = want;
	return 1;
}

int dcgm_latest(struct dcgm *d, uintptr_t h, const struct abi_pair *entities, uint32_t ne, const uint16_t *fields,
                uint32_t nf, struct abi_value_v2 *raw, struct dcgm_samples *out) {
	uint32_t total = ne * nf;
	// What the library does not fill must not be read as a value.
	for (uint32_t k = 0; k < total; k++) {
		raw[k].version = 0;
		raw[k].status = -14;
	}
	int r = CALL(latest, h, entities, ne, fields, nf, 0, raw); // 0: never the live flag
	if (r != 0)
		return r;
	if (!room(out, total)) {
		out->cut += total;
		return 0;
	}
	for (uint32_t k = 0; k < total; k++) {
		if (raw[k].version != 0)
			sample_of(&raw[k], k, &out->all[out->n++]);
	}
	return 0;
}

static int take(uint32_t group, uint32_t entity, struct abi_value_v1 *values, int n, void *user) {
	struct dcgm_samples *out = user;
	for (int k = 0; k < n; k++) {
		const struct abi_value_v1 *v = &values[k];
		// A pair without news is told with -14, a lost GPU with a storm of blanks.
		if (v->status != 0 || v->type != 'i' || is_blank('i', v->v.i, 0, NULL))
			continue;
		if (!room(out, 1)) {
			out->cut++;
			continue;
		}
		out->all[out->n++] = (struct dcgm_sample){
		    .group = group, .entity = entity, .field = v->field, .type = v->type, .ts = v->ts, .i = v->v.i};
	}
	return 0;
}

int dcgm_since(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields, int64_t since_us, int64_t *next_us,
               struct dcgm_samples *out) {
	return CALL(since, h, group, fields, since_us, next_us, take, out);
}

int dcgm_wake_fd(struct dcgm *d) { return dup(d->wake); }

// wake runs on a thread of the library and only says that there is news.
static int wake(struct abi_policy_response *response, uint64_t fd) {
	(void)response;
	uint64_t one = 1;
	// It never blocks. If the counter is full its reader will wake up anyway.
	ssize_t ignored = write((int)fd, &one, sizeof one);
	(void)ignored;
	return 0;
}

// wake_v1 is wake for DCGM 3, whose callbacks know nothing of who has registered them: the
// last one that has is woken up.
static int wake_v1_fd = -1;

static int wake_v1(void *response) {
	(void)response;
	int fd = __atomic_load_n(&wake_v1_fd, __ATOMIC_RELAXED);
	return fd < 0 ? 0 : wake(NULL, (uint64_t)fd);
}

enum { XID_CONDITION = 0x40, XID_PARAMETER = 6 };

int dcgm_policy_xid(struct dcgm *d, uintptr_t h, uintptr_t group) {
	struct abi_policy p = {.version = ABI_VERSION(p, 1), .condition = XID_CONDITION};
	p.parameters[XID_PARAMETER] = (struct abi_policy_parameter){0, 1};
	if (!d->policy_register && !d->policy_register_v1)
		return DCGM_NO_SYMBOL;
	int r = CALL(policy_set, h, group, &p, 0);
	if (r)
		return r;
	if (d->policy_register)
		return d->policy_register(h, group, XID_CONDITION, wake, (uint64_t)d->wake);
	__atomic_store_n(&wake_v1_fd, d->wake, __ATOMIC_RELAXED);
	return d->policy_register_v1(h, group, XID_CONDITION, wake_v1, wake_v1);
}

int dcgm_policy_none(struct dcgm *d, uintptr_t h, uintptr_t group) {
	return CALL(policy_unregister, h, group, XID_CONDITION);
}
