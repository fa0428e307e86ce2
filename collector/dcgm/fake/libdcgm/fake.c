// A libdcgm with an engine and GPUs of its own, for tests. It does what was measured on
// real engines, and what a test asks of it by fake_control. Structs are written by offset
// and versions compared with literal words, so that nothing is shared with the binding
// that it tests.

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uintptr_t handle;

enum {
	OK = 0, BADPARAM = -1, NOT_CONFIGURED = -5, NOT_SUPPORTED = -6, UNINITIALIZED = -10, TIMEOUT = -11, VER_MISMATCH = -12,
	NO_DATA = -14, NOT_WATCHED = -16, LOST = -18, NO_CONNECTION = -21, MAX_LIMIT = -24, DUPLICATE = -26, TOO_SMALL = -31,
	NVML_NOT_LOADED = -56, DETACHED = -67,
};
enum { GPU = 1, GPU_I = 4, GPU_CI = 5 };
enum { NONE = 0xffff }; // the number of no GPU
enum { ENTITIES = 160, FIELDS = 2048, GROUPS = 64, WATCHES = 256, CONNECTIONS = 64, SET = 4096 };

#define INT_BLANK 0x7ffffffffffffff0LL
#define DOUBLE_BLANK 140737488355328.0

static void put32(void *p, size_t at, uint32_t x) { memcpy((char *)p + at, &x, 4); }
static void put16(void *p, size_t at, uint16_t x) { memcpy((char *)p + at, &x, 2); }
static void put64(void *p, size_t at, int64_t x) { memcpy((char *)p + at, &x, 8); }
static uint32_t get32(const void *p, size_t at) {
	uint32_t x;
	memcpy(&x, (const char *)p + at, 4);
	return x;
}
static void puttext(void *p, size_t at, const char *s) { snprintf((char *)p + at, 256, "%s", s); }

struct entity {
	uint32_t group, id, gpu;         // gpu: the whole GPU that it is or is part of
	uint32_t parent_group, parent;   // of an instance
	uint32_t instance, compute, slices;
	int status;
	int64_t age_us; // of what the engine has read of it
	int sick_ms; // how long the driver takes to say who it is
	int stranger, twice; // listed though no group takes it; listed two times
	char uuid[64], device[64], pci[32], name[64], serial[32];
	uint16_t watched[FIELDS];
};

struct event {
	uint32_t group, id;
	uint16_t field;
	int blank;
	int64_t ts, visible, value;
};

struct setting {
	uint32_t group, id;
	uint16_t field;
	char kind; // i, d, s, or b for a blank, e for a status
	int64_t i;
	double d;
	char s[128];
};

struct group {
	int used, entities;
	handle conn;
	uint32_t group[1024], id[1024];
};

struct fields {
	int used, n;
	handle conn;
	uint16_t id[128];
	char name[256];
};

struct watch {
	int used;
	handle conn, group, fields;
};

struct kernel_line {
	uint32_t gpu;
	int64_t code, at;
};

struct incident {
	uint32_t gpu, system, health, code;
};

static struct {
	int inited, alive, blank_all, no_nvml, detached, mismatch, no_embed, no_policy;
	int64_t hang_until, limit_us, latency_us, ring_jitter_us;
	uint64_t connections_made;
	int conn_used[CONNECTIONS];
	struct entity *entities[ENTITIES];
	int entity_n;
	struct event *events;
	size_t event_n, event_room;
	struct setting set[SET];
	int set_n;
	struct {
		uint16_t field;
		int code;
	} refused[64];
	int refused_n;
	struct group groups[GROUPS];
	struct fields fields[GROUPS];
	struct watch watches[WATCHES];
	struct kernel_line ring[1024];
	int ring_n;
	struct incident incidents[64];
	int incident_n;
	uint32_t peers[32][32];
	int peer_code, peer_odd, old_links, slow_watches, field_groups;
	int begun[16][FIELDS], kept_ms[FIELDS], kept_n[FIELDS];
	int (*policy)(void *, uint64_t);
	uint64_t policy_user;
	int (*begin)(void *), (*finish)(void *); // of DCGM 3
	int policy_group;
	char engine_version[32], library_version[32], driver[64];
	int64_t calls, latest_calls, since_calls, attribute_calls, peer_calls, live_reads;
} w;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int64_t ahead; // how far the engine's clock was set forward, us

static int64_t now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + ahead;
}

static void wait_until(int64_t us) {
	us -= ahead;
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	pthread_cond_timedwait(&changed, &mu, &t);
}

// enter takes the lock and waits while the engine hangs. The client gives up after a
// while, and the engine works again afterwards.
static int enter(void) {
	pthread_mutex_lock(&mu);
	w.calls++;
	int64_t give_up = now_us() + w.limit_us, slow = now_us() + w.latency_us;
	while (w.latency_us && now_us() < slow)
		wait_until(slow);
	while (w.alive && now_us() < w.hang_until) {
		if (now_us() >= give_up)
			return TIMEOUT;
		wait_until(give_up < w.hang_until ? give_up : w.hang_until);
	}
	return w.inited ? OK : UNINITIALIZED;
}

static int leave(int r) {
	pthread_mutex_unlock(&mu);
	return r;
}

static int connected(handle h) {
	return w.alive && h > 0 && h < CONNECTIONS && w.conn_used[h] ? OK : NO_CONNECTION;
}

// ENTER begins every call over a connection.
#define ENTER(h)                                                                                                       \
	int r_ = enter();                                                                                                  \
	if (r_ == OK)                                                                                                      \
		r_ = connected(h);                                                                                             \
	if (r_ != OK)                                                                                                      \
	return leave(r_)

static struct entity *find(uint32_t group, uint32_t id) {
	for (int k = 0; k < w.entity_n; k++)
		if (w.entities[k]->group == group && w.entities[k]->id == id)
			return w.entities[k];
	return NULL;
}

static struct entity *gpu_of(const struct entity *e) { return find(GPU, e->gpu); }

static void add_entity(struct entity e) {
	if (w.entity_n == ENTITIES)
		abort();
	struct entity *p = malloc(sizeof *p);
	*p = e;
	w.entities[w.entity_n++] = p;
}

static void add_event(uint32_t group, uint32_t id, uint16_t field, int64_t value, int blank, int64_t ts, int64_t visible) {
	if (w.event_n == w.event_room) {
		w.event_room = w.event_room ? 2 * w.event_room : 256;
		w.events = realloc(w.events, w.event_room * sizeof *w.events);
	}
	for (size_t k = 0; k < w.event_n; k++) // the later one of two at the same time gets a microsecond more
		if (w.events[k].ts == ts && w.events[k].group == group && w.events[k].id == id && w.events[k].field == field) {
			ts++;
			k = (size_t)-1;
		}
	w.events[w.event_n++] = (struct event){group, id, field, blank, ts, visible, value};
}

static struct setting *setting_of(uint32_t group, uint32_t id, uint16_t field) {
	for (int k = 0; k < w.set_n; k++)
		if (w.set[k].field == field && w.set[k].group == group && w.set[k].id == id)
			return &w.set[k];
	return NULL;
}

static char type_of(uint16_t field) {
	switch (field) {
	case 1: case 50: case 53: case 54: case 57: case 172:
		return 's';
	case 155: case 157: case 160: case 161: case 162: case 163: case 164: case 254:
		return 'd';
	}
	return field >= 1001 && field <= 1008 ? 'd' : field >= 1013 && field <= 1015 ? 'd' : 'i';
}

// fill writes the value of a field as it is now; v is where the union begins.
static int fill(const struct entity *e, uint16_t field, char *type, void *v, int64_t *ts) {
	*type = type_of(field);
	const struct entity *whole = gpu_of(e);
	*ts = now_us() - (whole ? whole->age_us : 0);
	struct setting *s = setting_of(e->group, e->id, field);
	const struct entity *g = gpu_of(e);
	int blank = w.blank_all || (g && g->status == 4);
	if ((s && s->kind == 'b') || (e->group == GPU_I && field == 54))
		blank = 1;
	if (!blank && s && s->kind == 'e') {
		*ts = 0;
		blank = 1;
	}
	int status = s && s->kind == 'e' && *ts == 0 ? (int)s->i : OK;
	if (field == 230 || field == 450 || field == 6) {
		const struct event *newest = NULL;
		for (size_t k = 0; k < w.event_n; k++) {
			const struct event *x = &w.events[k];
			if (x->group == e->group && x->id == e->id && x->field == field && x->visible <= *ts && (!newest || x->ts > newest->ts))
				newest = x;
		}
		if (!blank) {
			if (!newest) {
				status = NO_DATA;
				*ts = 0;
				put64(v, 0, INT_BLANK);
				return status;
			}
			*ts = newest->ts;
			put64(v, 0, newest->blank ? INT_BLANK : newest->value);
			return OK;
		}
	}
	switch (*type) {
	case 'i':
		if (e->group == 3 && field >= 866 && field <= 869) { // where the switch is
			put64(v, 0, field == 867 ? (int64_t)e->slices : 0);
			break;
		}
		put64(v, 0, blank ? INT_BLANK : s ? s->i : (int64_t)(field + e->gpu));
		break;
	case 'd': {
		double d = blank ? DOUBLE_BLANK : s ? s->d : field / 1000.0;
		memcpy(v, &d, 8);
		break;
	}
	case 's':
		snprintf(v, 256, "%s", blank ? "<<<NULL>>>" : s ? s->s : field == 1 ? w.driver : field == 54 ? e->device : field == 172 ? "00000000-0000-0000-0000-000000000000" : e->name);
	}
	return status;
}

// --- what a test may ask for

static void forget_engine(void) {
	memset(w.conn_used, 0, sizeof w.conn_used);
	memset(w.groups, 0, sizeof w.groups);
	memset(w.fields, 0, sizeof w.fields);
	memset(w.watches, 0, sizeof w.watches);
	w.policy = NULL;
	w.begin = w.finish = NULL;
	w.event_n = 0;
	for (int k = 0; k < w.entity_n; k++)
		memset(w.entities[k]->watched, 0, sizeof w.entities[k]->watched);
}

// read_ring is what an engine does when it starts: the kernel's ring from its beginning.
static void read_ring(void) {
	for (int k = 0; k < w.ring_n; k++) {
		add_event(GPU, w.ring[k].gpu, 230, w.ring[k].code, 0, w.ring[k].at + w.ring_jitter_us, 0);
		if (w.ring[k].code == 119)
			w.blank_all = 1;
	}
}

static void gpus(int n) {
	for (int k = 0; k < w.entity_n; k++)
		free(w.entities[k]);
	w.entity_n = 0;
	for (int k = 0; k < n; k++) {
		struct entity e = {.group = GPU, .id = (uint32_t)k, .gpu = (uint32_t)k, .status = 1};
		snprintf(e.uuid, sizeof e.uuid, "GPU-%08x-1111-2222-3333-44444444%04x", k, k);
		snprintf(e.device, sizeof e.device, "%s", e.uuid);
		snprintf(e.pci, sizeof e.pci, "00000000:%XA:00.0", k + 1);
		snprintf(e.name, sizeof e.name, "NVIDIA H100 80GB HBM3");
		snprintf(e.serial, sizeof e.serial, "16500000000%02d", k);
		add_entity(e);
	}
}

static void start_over(int n) {
	free(w.events);
	memset(&w, 0, sizeof w);
	w.alive = 1;
	w.limit_us = 60000000;
#ifdef DCGM3
	const char *version = "3.3.9";
#else
	const char *version = "4.6.0";
#endif
	snprintf(w.engine_version, sizeof w.engine_version, "%s", version);
	snprintf(w.library_version, sizeof w.library_version, "%s", version);
	snprintf(w.driver, sizeof w.driver, "570.124.06");
	gpus(n);
}

__attribute__((constructor)) static void start(void) { start_over(8); }

static void *call_policy(void *arg) {
	struct event *x = arg;
#ifdef DCGM3
	char response[24] = {0};
	put32(response, 0, 0x01000018);
	put32(response, 4, 0x40);
	put64(response, 8, x->ts);
	put32(response, 16, (uint32_t)x->value);
	pthread_mutex_lock(&mu);
	int (*begin)(void *) = w.begin, (*finish)(void *) = w.finish;
	pthread_mutex_unlock(&mu);
	if (begin)
		begin(response);
	if (finish)
		finish(response);
	return NULL;
#else
	char response[32] = {0};
	put32(response, 0, 0x02000020);
	put32(response, 4, 0x40);
	put64(response, 8, x->ts);
	put32(response, 16, (uint32_t)x->value);
	put32(response, 24, x->id);
	pthread_mutex_lock(&mu);
	int (*policy)(void *, uint64_t) = w.policy;
	uint64_t user = w.policy_user;
	pthread_mutex_unlock(&mu);
	if (policy)
		policy(response, user);
	return NULL;
#endif
}

static void xid(uint32_t group, uint32_t id, int64_t code, int64_t age, int64_t delay) {
	int64_t t = now_us();
	add_event(group, id, 230, code, 0, t - age, t + delay);
	if ((!w.policy && !w.begin) || !w.alive)
		return;
	struct event x = {.id = id, .value = code, .ts = t - age};
	pthread_t thread;
	pthread_mutex_unlock(&mu);
	if (pthread_create(&thread, NULL, call_policy, &x) == 0)
		pthread_join(thread, NULL);
	pthread_mutex_lock(&mu);
}

static int is(const char *line, const char *word, const char *format, int want, ...) {
	size_t n = strlen(word);
	if (strncmp(line, word, n) != 0 || (line[n] != ' ' && line[n] != 0))
		return 0;
	va_list args;
	va_start(args, want);
	int got = *format ? vsscanf(line + n, format, args) : 0;
	va_end(args);
	return got == want;
}

static int64_t more(const char *line);

static int64_t control(const char *line) {
	long long a, b, c, d, e;
	double x;
	char kind, word[128];
	struct entity *p;
	if (is(line, "reset", "%lld", 1, &a)) {
		start_over((int)a);
	} else if (is(line, "lose", "%lld", 1, &a) && (p = find(GPU, (uint32_t)a))) {
		p->status = 4;
	} else if (is(line, "return", "%lld", 1, &a) && (p = find(GPU, (uint32_t)a))) {
		p->status = 1;
	} else if (is(line, "gone", "%lld", 1, &a) && (p = find(GPU, (uint32_t)a))) { // and those after it are counted anew
		int n = 0;
		for (int k = 0; k < w.entity_n; k++) {
			struct entity *e = w.entities[k];
			if (e == p) {
				free(e);
				continue;
			}
			if (e->group == GPU && e->id > (uint32_t)a)
				e->gpu = --e->id;
			w.entities[n++] = e;
		}
		w.entity_n = n;
	} else if (is(line, "status", "%lld %lld", 2, &a, &b) && (p = find(GPU, (uint32_t)a))) {
		p->status = (int)b;
	} else if (is(line, "sick", "%lld %lld", 2, &a, &b) && (p = find(GPU, (uint32_t)a))) {
		p->sick_ms = (int)b;
	} else if (is(line, "hang", "%lld", 1, &a)) {
		w.hang_until = now_us() + a * 1000;
	} else if (is(line, "wake", "", 0)) {
		w.hang_until = 0;
	} else if (is(line, "limit", "%lld", 1, &a)) {
		w.limit_us = a * 1000;
	} else if (is(line, "latency", "%lld", 1, &a)) {
		w.latency_us = a;
	} else if (is(line, "die", "", 0)) {
		forget_engine();
		w.alive = 0;
	} else if (is(line, "cut", "", 0)) { // the connections, with their watches; what has happened is kept
		size_t kept = w.event_n;
		forget_engine();
		w.event_n = kept;
	} else if (is(line, "forget", "", 0)) { // another engine behind the same connections
		int used[CONNECTIONS];
		size_t kept = w.event_n;
		memcpy(used, w.conn_used, sizeof used);
		forget_engine();
		memcpy(w.conn_used, used, sizeof used);
		w.event_n = kept;
	} else if (is(line, "forward", "%lld", 1, &a)) { // the clock, by milliseconds
		ahead += a * 1000;
	} else if (is(line, "policy", "%lld", 1, &a)) {
		w.no_policy = !a;
	} else if (is(line, "start", "", 0)) {
		w.alive = 1;
		w.blank_all = 0;
		read_ring();
	} else if (is(line, "xid", "%lld %lld %lld %lld", 4, &a, &b, &c, &d)) {
		xid(GPU, (uint32_t)a, b, c, d);
	} else if (is(line, "xid-of", "%lld %lld %lld %lld %lld", 5, &a, &b, &c, &d, &e)) {
		xid((uint32_t)a, (uint32_t)b, c, d, e);
	} else if (is(line, "sample", "%lld %lld %lld %lld", 4, &a, &b, &c, &d) && find(GPU, (uint32_t)a)) { // GPU FIELD VALUE AGE
		int64_t t = now_us();
		add_event(GPU, (uint32_t)a, (uint16_t)b, c, 0, t - d, t);
	} else if (is(line, "kernel", "%lld %lld %lld", 3, &a, &b, &c) && w.ring_n < 1024) {
		int64_t at = now_us() - c;
		w.ring[w.ring_n++] = (struct kernel_line){(uint32_t)a, b, at};
		if (w.alive) {
			add_event(GPU, (uint32_t)a, 230, b, 0, at, now_us());
			w.blank_all |= b == 119;
		}
	} else if (is(line, "jitter", "%lld", 1, &a)) {
		w.ring_jitter_us = a;
	} else if (is(line, "blank", "%lld", 1, &a)) {
		w.blank_all = (int)a;
	} else if (is(line, "nvml", "%lld", 1, &a)) {
		w.no_nvml = !a;
	} else if (is(line, "detach", "", 0) || is(line, "attach", "", 0)) {
		w.detached = line[0] == 'd';
		for (int k = 0; k < w.entity_n; k++)
			if (w.entities[k]->group == GPU) {
				add_event(GPU, w.entities[k]->id, 6, w.detached ? 1 : 2, 0, now_us(), 0);
				w.entities[k]->status = w.detached ? 7 : 1;
			}
	} else if (is(line, "mismatch", "%lld", 1, &a)) {
		w.mismatch = (int)a;
	} else if (is(line, "embed", "%lld", 1, &a)) {
		w.no_embed = !a;
	} else if (is(line, "version", "%31s", 1, word)) {
		snprintf(w.engine_version, sizeof w.engine_version, "%.31s", word);
	} else if (is(line, "refuse", "%lld %lld", 2, &a, &b) && w.refused_n < 64) {
		w.refused[w.refused_n].field = (uint16_t)a;
		w.refused[w.refused_n++].code = (int)b;
	} else if (is(line, "accept", "", 0)) {
		w.refused_n = 0;
	} else if (is(line, "set", "%lld %lld %lld %c", 4, &a, &b, &c, &kind) && w.set_n < SET) {
		struct setting *s = setting_of((uint32_t)a, (uint32_t)b, (uint16_t)c);
		if (!s)
			s = &w.set[w.set_n++];
		*s = (struct setting){.group = (uint32_t)a, .id = (uint32_t)b, .field = (uint16_t)c, .kind = kind};
		if (kind == 'd' && sscanf(line, "set %*d %*d %*d %*c %lf", &x) == 1)
			s->d = x;
		else if (kind == 's' && sscanf(line, "set %*d %*d %*d %*c %127[^\n]", word) == 1)
			snprintf(s->s, sizeof s->s, "%s", word);
		else if (kind != 'b' && sscanf(line, "set %*d %*d %*d %*c %lld", &d) == 1)
			s->i = d;
		else if (kind != 'b')
			return -1;
	} else if (is(line, "mig", "%lld %lld %lld %lld", 4, &a, &b, &c, &d) && (p = find(GPU, (uint32_t)a))) {
		// mig GPU ENTITY INSTANCE SLICES: one GPU instance and a compute instance that fills it.
		struct entity i = {.group = GPU_I, .id = (uint32_t)b, .gpu = (uint32_t)a, .parent_group = GPU, .parent = (uint32_t)a,
		                   .instance = (uint32_t)c, .slices = (uint32_t)d, .status = 1};
		snprintf(i.uuid, sizeof i.uuid, "%s", p->uuid);
		snprintf(i.name, sizeof i.name, "%lldg.%lldgb", d, d * 10);
		add_entity(i);
		snprintf(i.device, sizeof i.device, "MIG-%08llx-5555-6666-7777-%012llx", a, b);
		i.group = GPU_CI, i.parent_group = GPU_I, i.parent = (uint32_t)b;
		add_entity(i);
	} else if (is(line, "mig-none", "", 0)) {
		int n = 0;
		for (int k = 0; k < w.entity_n; k++) {
			if (w.entities[k]->group != GPU_I && w.entities[k]->group != GPU_CI)
				w.entities[n++] = w.entities[k];
			else
				free(w.entities[k]);
		}
		w.entity_n = n;
	} else if (is(line, "health", "%lld %lld %lld %lld", 4, &a, &b, &c, &d) && w.incident_n < 64) {
		w.incidents[w.incident_n++] = (struct incident){(uint32_t)a, (uint32_t)b, (uint32_t)c, (uint32_t)d};
	} else if (is(line, "health-none", "", 0)) {
		w.incident_n = 0;
	} else if (is(line, "peers", "%lld %lld %lld", 3, &a, &b, &c) && a >= 0 && a < 32 && b >= 0 && b < 32) {
		w.peers[a][b] = (uint32_t)c;
	} else if (is(line, "peers-code", "%lld", 1, &a)) {
		w.peer_code = (int)a;
	} else if (is(line, "peers-odd", "%lld", 1, &a)) {
		w.peer_odd = (int)a;
	} else if (is(line, "peer-calls", "", 0)) {
		return w.peer_calls;
	} else if (is(line, "calls", "", 0)) {
		return w.calls;
	} else if (is(line, "latest-calls", "", 0)) {
		return w.latest_calls;
	} else if (is(line, "live-reads", "", 0)) {
		return w.live_reads;
	} else if (is(line, "attribute-calls", "", 0)) {
		return w.attribute_calls;
	} else if (is(line, "held", "", 0)) { // everything that a client should give back
		int n = 0;
		for (int k = 0; k < CONNECTIONS; k++)
			n += w.conn_used[k];
		for (int k = 0; k < GROUPS; k++)
			n += w.groups[k].used + w.fields[k].used;
		for (int k = 0; k < WATCHES; k++)
			n += w.watches[k].used;
		return n;
	} else if (is(line, "watches", "", 0)) {
		int n = 0;
		for (int k = 0; k < WATCHES; k++)
			n += w.watches[k].used;
		return n;
	} else {
		return more(line);
	}
	return 0;
}

// fake_control does what a line asks for. It returns -1 for a line that it doesn't
// understand, the number that was asked for, or 0.
int64_t fake_control(const char *line) {
	pthread_mutex_lock(&mu);
	int64_t r = control(line);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return r;
}

#include "calls.inc"
#include "entities.inc"
#include "obey.inc"
#include "inject.inc"
