/* A libnvidia-ml.so for tests: four GPUs, or as many as the macro GPUS says, that behave as the file "scenario" in the folder of the macro FOLDER says, read again at every call.
 * Each line of that file is "GPU KEY VALUE"; keys: lost, xid (an error that only a reset ends), hang, failing, unsupported, watts, counter_offset_joules,
 * counter_factor, processes, mps_clients, old (a Pascal board), mig (its instances' slices as digits: 421), sm_76 to sm_79 (what a process uses of the SMs, in percent), garbage (a row of it among these), and for setters: set_fails, forbidden, ignores, rounds_milliwatts,
 * bursts (its clock passes every lock). "9 hang 1": nvmlInit hangs. "9 kill_at N": the process is killed at its Nth call of a setting,
 * before it is done where N is odd, after it where N is even. Power is steady, so the counter is exactly power times time.
 *
 * As a real GPU's, settings outlive the process: they stand in "settings-GPU" in that folder as "power_milliwatts lock_mhz memory_mhz
 * graphics_mhz"; without the file they are the defaults. Whoever writes there is somebody else who changes them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, LOST = 15, RESET_REQUIRED = 16, UNKNOWN = 999 };
/* part: 0 is the GPU itself, N its Nth MIG instance. */
typedef struct { unsigned index, part; } Device;
#ifndef GPUS
#define GPUS 4
#endif
static Device devices[GPUS];
__attribute__((constructor)) static void number(void) { for (unsigned i = 0; i < GPUS; i++) devices[i].index = i; }
static struct timespec loaded;

static double setting(unsigned gpu, const char *key, double otherwise) {
  FILE *file = fopen(FOLDER "/scenario", "r");
  if (!file) return otherwise;
  unsigned g; char k[64]; double v, found = otherwise;
  while (fscanf(file, "%u %63s %lf", &g, k, &v) == 3)
    if (g == gpu && !strcmp(k, key)) found = v;
  fclose(file);
  return found;
}

/* Every call to a GPU passes here. */
static nvmlReturn_t answer(Device *d) {
  while (setting(d->index, "hang", 0) != 0) {
    struct timespec nap = {0, 5000000};
    nanosleep(&nap, NULL);
  }
  if (setting(d->index, "lost", 0) != 0) return LOST;
  if (setting(d->index, "xid", 0) != 0) return RESET_REQUIRED;
  return setting(d->index, "failing", 0) != 0 ? UNKNOWN : OK;
}
static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(now.tv_sec - loaded.tv_sec) + (double)(now.tv_nsec - loaded.tv_nsec) / 1e9;
}
static double watts(Device *d) { return setting(d->index, "watts", 250 + 50 * (double)d->index); }
static int lacks(Device *d) { return setting(d->index, "unsupported", 0) != 0; }

nvmlReturn_t nvmlInit_v2(void) {
  while (setting(9, "hang", 0) != 0) {
    struct timespec nap = {0, 5000000};
    nanosleep(&nap, NULL);
  }
  clock_gettime(CLOCK_MONOTONIC, &loaded); loaded.tv_sec -= 1000; return OK;
}
nvmlReturn_t nvmlShutdown(void) { return OK; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "555.42.02"); return OK; }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned n) { snprintf(out, n, "12.555.42"); return OK; }
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n) {
  snprintf(out, n, pid == 77 ? "/usr/bin/nvidia-cuda-mps-server" : "python"); return OK;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
  if (index >= GPUS) return INVALID;
  *out = &devices[index];
  return answer(*out);
}
nvmlReturn_t nvmlDeviceGetUUID(Device *d, char *out, unsigned n) {
  if (d->part) snprintf(out, n, "MIG-fake-%u-%u", d->index, d->part); else snprintf(out, n, "GPU-fake-%u", d->index);
  return answer(d);
}
nvmlReturn_t nvmlDeviceGetName(Device *d, char *out, unsigned n) { snprintf(out, n, "Fake H100"); return answer(d); }
static int old(Device *d) { return setting(d->index, "old", 0) != 0; }
nvmlReturn_t nvmlDeviceGetArchitecture(Device *d, unsigned *out) { *out = old(d) ? 4 : lacks(d) ? 6 : 9; return answer(d); }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *out) {
  if (lacks(d)) return NOT_SUPPORTED;
  double joules = watts(d) * seconds() * setting(d->index, "counter_factor", 1) + setting(d->index, "counter_offset_joules", 0);
  /* As real ones do, it moves every 100 ms only; finer here would hide what that costs. */
  double step = watts(d) * 0.1;
  *out = (unsigned long long)((double)(long long)(joules / step) * step * 1000);
  return answer(d);
}
nvmlReturn_t nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { *out = (unsigned)(watts(d) * 1000); return answer(d); }

typedef struct {
  unsigned field, scope; long long time, latency; int type; nvmlReturn_t result;
  union { double d; unsigned u; unsigned long ul; unsigned long long ull; } value;
} Field;
nvmlReturn_t nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
  for (int i = 0; i < count; i++) {
    fields[i].type = 1;
    fields[i].result = lacks(d) ? NOT_SUPPORTED : OK;
    if (fields[i].field == 186) fields[i].value.u = (unsigned)(watts(d) * 1000);
    else if (fields[i].field == 185) fields[i].value.u = (unsigned)(watts(d) * 1000) - 1000;
    else if (fields[i].field == 82) fields[i].value.u = 55;
    else fields[i].result = INVALID;
  }
  return answer(d);
}
typedef struct { unsigned gpu, memory; } Utilization;
nvmlReturn_t nvmlDeviceGetUtilizationRates(Device *d, Utilization *out) { out->gpu = 80; out->memory = 40; return answer(d); }

/* Settings. */
typedef struct { unsigned power, lock, memory, graphics; } Settings;
enum { MIN_POWER = 200000, MAX_POWER = 700000, MIN_CLOCK = 210, MAX_CLOCK = 1980, CLOCK_STEP = 15, MEMORY_CLOCK = 2619 };
static Settings settings(Device *d) {
  Settings s = {MAX_POWER, 0, MEMORY_CLOCK, 1755};
  char path[4096]; snprintf(path, sizeof path, FOLDER "/settings-%u", d->index);
  FILE *file = fopen(path, "r");
  if (!file) return s;
  if (fscanf(file, "%u %u %u %u", &s.power, &s.lock, &s.memory, &s.graphics) != 4) abort();
  fclose(file);
  return s;
}
static void kill_when_due(int count) { if (count == (int)setting(9, "kill_at", 0)) { kill(getpid(), SIGKILL); pause(); } }
static nvmlReturn_t change(Device *d, Settings s) {
  static int count;
  nvmlReturn_t result = answer(d);
  if (result != OK) return result;
  if (setting(d->index, "forbidden", 0) != 0) return NO_PERMISSION;
  if (setting(d->index, "set_fails", 0) != 0) return UNKNOWN;
  int before = __atomic_add_fetch(&count, 2, __ATOMIC_SEQ_CST) - 1;
  kill_when_due(before);
  if (setting(d->index, "ignores", 0) == 0) {
    char path[4096], next[4096];
    snprintf(path, sizeof path, FOLDER "/settings-%u", d->index); snprintf(next, sizeof next, FOLDER "/settings-%u.next", d->index);
    FILE *file = fopen(next, "w");
    if (!file || fprintf(file, "%u %u %u %u\n", s.power, s.lock, s.memory, s.graphics) < 0 || fclose(file) || rename(next, path)) abort();
  }
  kill_when_due(before + 1);
  return OK;
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(Device *d, unsigned *out) { *out = 1; return answer(d); }
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(Device *d, unsigned *out) {
  *out = settings(d).power;
  return lacks(d) ? NOT_SUPPORTED : answer(d);
}
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *out) { *out = MAX_POWER; return answer(d); }
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(Device *d, unsigned *min, unsigned *max) {
  *min = MIN_POWER; *max = MAX_POWER;
  return lacks(d) ? NOT_SUPPORTED : answer(d);
}
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(Device *d, unsigned milliwatts) {
  if (lacks(d)) return NOT_SUPPORTED;
  if (milliwatts < MIN_POWER || milliwatts > MAX_POWER) return INVALID;
  Settings s = settings(d);
  unsigned step = (unsigned)setting(d->index, "rounds_milliwatts", 1);
  s.power = milliwatts / step * step;
  return change(d, s);
}
nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(Device *d, unsigned *count, unsigned *out) {
  if (lacks(d)) return NOT_SUPPORTED;
  if (!out || *count < 1) { *count = 1; return SMALL; }
  *count = 1; out[0] = MEMORY_CLOCK;
  return answer(d);
}
nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(Device *d, unsigned memory, unsigned *count, unsigned *out) {
  if (lacks(d) || memory != MEMORY_CLOCK) return NOT_SUPPORTED;
  unsigned n = (MAX_CLOCK - MIN_CLOCK) / CLOCK_STEP + 1;
  if (!out || *count < n) { *count = n; return SMALL; }
  for (unsigned i = 0; i < n; i++) out[i] = MAX_CLOCK - i * CLOCK_STEP;
  *count = n;
  return answer(d);
}
nvmlReturn_t nvmlDeviceSetGpuLockedClocks(Device *d, unsigned min, unsigned max) {
  if (lacks(d) || old(d)) return NOT_SUPPORTED;
  if (min < MIN_CLOCK || max > MAX_CLOCK || min > max) return INVALID;
  Settings s = settings(d);
  s.lock = max;
  return change(d, s);
}
nvmlReturn_t nvmlDeviceResetGpuLockedClocks(Device *d) {
  if (lacks(d) || old(d)) return NOT_SUPPORTED;
  Settings s = settings(d);
  s.lock = 0;
  return change(d, s);
}
nvmlReturn_t nvmlDeviceGetApplicationsClock(Device *d, int type, unsigned *out) {
  Settings s = settings(d);
  *out = type == 2 ? s.memory : s.graphics;
  return lacks(d) ? NOT_SUPPORTED : answer(d);
}
nvmlReturn_t nvmlDeviceSetApplicationsClocks(Device *d, unsigned memory, unsigned graphics) {
  if (lacks(d)) return NOT_SUPPORTED;
  if (memory != MEMORY_CLOCK || graphics < MIN_CLOCK || graphics > MAX_CLOCK) return INVALID;
  Settings s = settings(d);
  s.memory = memory; s.graphics = graphics;
  return change(d, s);
}
nvmlReturn_t nvmlDeviceGetClockInfo(Device *d, int type, unsigned *out) {
  unsigned lock = settings(d).lock;
  unsigned sm = lock && lock < MAX_CLOCK && setting(d->index, "bursts", 0) == 0 ? lock : MAX_CLOCK;
  *out = type == 2 ? MEMORY_CLOCK : sm;
  return answer(d);
}
nvmlReturn_t nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *out) { (void)sensor; *out = 50; return answer(d); }
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(Device *d, Memory *out) { out->total = 80ull << 30; out->used = 10ull << 30; return answer(d); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *out) { *out = settings(d).power; return answer(d); }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *out) { *out = 0x4 | 0x8000; return answer(d); }
nvmlReturn_t nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *next) {
  *now = *next = setting(d->index, "mig", 0) != 0;
  return lacks(d) ? NOT_SUPPORTED : answer(d);
}
static int slices(Device *d, unsigned part) {
  char digits[16]; snprintf(digits, sizeof digits, "%.0f", setting(d->index, "mig", 0));
  return part <= strlen(digits) ? digits[part - 1] - '0' : 0;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { *out = 7; return answer(d); }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
  static Device parts[GPUS][7];
  if (index >= 7 || d->part) return INVALID;
  if (slices(d, index + 1) == 0) return NOT_FOUND;
  *out = &parts[d->index][index];
  **out = (Device){d->index, index + 1};
  return answer(d);
}
typedef struct { unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory; } Attributes;
nvmlReturn_t nvmlDeviceGetAttributes_v2(Device *d, Attributes *out) {
  if (!d->part) return NOT_SUPPORTED;
  memset(out, 0, sizeof *out);
  out->gpu_slices = out->compute_slices = (unsigned)slices(d, d->part);
  return answer(d);
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
  unsigned running = (unsigned)setting(d->index, "processes", 2);
  if (out == NULL || *count < running) { *count = running; return running ? SMALL : OK; }
  for (unsigned i = 0; i < running; i++) { memset(&out[i], 0, sizeof out[i]); out[i].pid = 76 + i; }
  *count = running;
  return answer(d);
}

typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Used;
nvmlReturn_t nvmlDeviceGetProcessUtilization(Device *d, Used *out, unsigned *count, unsigned long long since) {
  if (lacks(d)) return NOT_SUPPORTED;
  unsigned long long now = (unsigned long long)(seconds() * 1e6);
  unsigned found = 0;
  /* As real ones do: one row a process, each with a time of its own, and garbage now and then. */
  if (out && *count > 0 && setting(d->index, "garbage", 0) != 0) out[found] = (Used){50554, now, 37100, 0, 0, 0};
  found += setting(d->index, "garbage", 0) != 0;
  for (unsigned pid = 76; pid < 80 && now > since; pid++) {
    char key[16]; snprintf(key, sizeof key, "sm_%u", pid);
    unsigned sm = (unsigned)setting(d->index, key, 0);
    if (sm == 0) continue;
    if (out && found < *count) out[found] = (Used){pid, now - (pid - 76), sm, 0, 0, 0};
    found++;
  }
  if (!out || found > *count) { *count = found; return found ? SMALL : NOT_FOUND; }
  *count = found;
  return answer(d);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
  unsigned running = (unsigned)setting(d->index, "mps_clients", 0);
  if (out == NULL || *count < running) { *count = running; return running ? SMALL : OK; }
  for (unsigned i = 0; i < running; i++) { memset(&out[i], 0, sizeof out[i]); out[i].pid = 100 + i; }
  *count = running;
  return answer(d);
}

typedef struct { unsigned version, supported; } GpmSupport;
nvmlReturn_t nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *out) { out->supported = !lacks(d); return answer(d); }
nvmlReturn_t nvmlGpmSampleAlloc(void **out) { *out = malloc(8); return OK; }
nvmlReturn_t nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
nvmlReturn_t nvmlGpmSampleGet(Device *d, void *sample) { (void)sample; return answer(d); }
typedef struct { unsigned id; nvmlReturn_t result; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; void *first, *second; GpmMetric metrics[210]; } GpmGet;
nvmlReturn_t nvmlGpmMetricsGet(GpmGet *get) {
  for (unsigned i = 0; i < get->count; i++) {
    GpmMetric *m = &get->metrics[i];
    m->result = m->id == 12 ? NOT_SUPPORTED : OK;
    m->value = m->id == 2 ? 75 : m->id == 10 ? 30 : m->id == 20 ? 2 : 10;
  }
  return OK;
}
