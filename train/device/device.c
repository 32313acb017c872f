/* The list of devices: the only place that knows which implementations there are. */
#include "train/device/device.h"

#include <string.h>

#include "train/device/device_cpu.h"

static const struct {
    const char *name;
    enum status (*open)(int thread_count, struct device **out_device);
} devices[] = {
    {"cpu", device_cpu_open},
};

enum status device_open(const char *name, int thread_count, struct device **out_device)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (strcmp(name, devices[i].name) == 0) {
            return devices[i].open(thread_count, out_device);
        }
    }
    return FAIL(STATUS_UNSUPPORTED, "there is no device '%s' in this build; there is: cpu", name);
}

void device_close(struct device **device)
{
    if (*device != NULL) {
        (*device)->ops->close(*device);
        *device = NULL;
    }
}
