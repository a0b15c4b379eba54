/* A library with the functions of libefml that the enflame driver asks, for machines without a card.
 *
 * What it answers stands in the file efml.conf beside it, one `key value` a line, read anew at every call. So a
 * test changes a card by writing a file, and nothing inside the tested process is replaced. A key may be
 * followed by a point and the number of a card, which goes before the key without one:
 *
 *     count 2
 *     memory 17179869184
 *     uuid.0 U53000080101
 *     code.EfmlGetDevIsHealth.1 253     the code that this function answers for that card
 *
 * -DMODEL="\"...\"" makes another library of it, -DWITHOUT_HEALTH one that lacks the health functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MODEL
#define MODEL "T10"
#endif

static int opened;

typedef struct {
    char name[128];
    uint32_t vendor, device, domain, bus, dev, func, logic_id;
} device_info;

typedef struct {
    uint64_t total;
    uint32_t used;
} device_memory;

typedef struct {
    bool supported, flags;
} rma_status;

typedef struct {
    uint32_t connected;
    char uuid[16];
    uint32_t vendor, device, domain, bus, dev, func, port;
    int32_t kind;
    uint32_t remote_card;
    char remote_uuid[16];
    uint32_t remote_vendor, remote_device, remote_domain, remote_bus, remote_dev, remote_func, remote_port;
    int32_t remote_kind;
} link_port;

/* The value of a key, "" where there is none. */
static const char *find(const char *key, char value[128])
{
    char path[4096], line[512];
    Dl_info here;
    value[0] = 0;
    dladdr((void *)find, &here);
    snprintf(path, sizeof path, "%s", here.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "efml.conf");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *text = strchr(line, ' ');
        if (!text)
            continue;
        *text++ = 0;
        text[strcspn(text, "\n")] = 0;
        if (strcmp(line, key) == 0)
            snprintf(value, 128, "%s", text);
    }
    if (file)
        fclose(file);
    return value;
}

static const char *of_card(const char *key, uint32_t card, char value[128])
{
    char full[128];
    snprintf(full, sizeof full, "%s.%u", key, card);
    return *find(full, value) ? value : find(key, value);
}

static long long number(const char *key, uint32_t card)
{
    char value[128];
    return strtoll(of_card(key, card, value), NULL, 0);
}

static int code(const char *function, uint32_t card)
{
    char key[128];
    snprintf(key, sizeof key, "code.%s", function);
    int said = (int)number(key, card);
    return said ? said : opened ? 0 : 1;
}

static int text(const char *function, const char *key, uint32_t card, char *out)
{
    char value[128];
    int said = code(function, card);
    if (said == 0)
        strcpy(out, of_card(key, card, value));
    return said;
}

int EfmlInit(bool no_driver)
{
    opened = !no_driver;
    int said = code("EfmlInit", 0);
    opened = said == 0;
    return said;
}

void EfmlShutdown(void)
{
    opened = 0;
}

int EfmlGetDevCount(uint32_t *count)
{
    *count = (uint32_t)number("count", 0);
    return code("EfmlGetDevCount", 0);
}

int EfmlGetDriverAccessPoint(char *out)
{
    return text("EfmlGetDriverAccessPoint", "access_point", 0, out);
}

/* A card's place is written as bus:dev.func, such as 11:00.0. */
int EfmlGetDevInfo(uint32_t card, device_info *info)
{
    char value[128];
    memset(info, 0, sizeof *info);
    strcpy(info->name, "GCU");
    info->vendor = 0x1e36;
    sscanf(of_card("place", card, value), "%x:%x.%x", &info->bus, &info->dev, &info->func);
    info->logic_id = *of_card("logic", card, value) ? (uint32_t)number("logic", card) : card;
    return code("EfmlGetDevInfo", card);
}

int EfmlGetDevUuid(uint32_t card, char *out)
{
    return text("EfmlGetDevUuid", "uuid", card, out);
}

int EfmlGetDevSKU(uint32_t card, char *out)
{
    strcpy(out, MODEL);
    return code("EfmlGetDevSKU", card);
}

int EfmlGetDevName(uint32_t card, char *out)
{
    return text("EfmlGetDevName", "name", card, out);
}

int EfmlGetDevMem(uint32_t card, device_memory *memory)
{
    memory->total = (uint64_t)number("memory", card);
    memory->used = 1;
    return code("EfmlGetDevMem", card);
}

int EfmlGetNumaNode(uint32_t card, int *node)
{
    *node = (int)number("numa", card);
    return code("EfmlGetNumaNode", card);
}

#ifndef WITHOUT_HEALTH
int EfmlGetDevIsHealth(uint32_t card, bool *healthy)
{
    *healthy = !number("sick", card);
    return code("EfmlGetDevIsHealth", card);
}

int EfmlGetDevHealth(uint32_t card, bool *healthy)
{
    *healthy = !number("sick", card);
    return code("EfmlGetDevHealth", card);
}

int EfmlGetDevRmaStatus(uint32_t card, rma_status *status)
{
    status->supported = true;
    status->flags = number("rma", card) != 0;
    return code("EfmlGetDevRmaStatus", card);
}
#endif

int EfmlGetGcuLareIsSupported(uint32_t card, bool *supported)
{
    *supported = number("ports", card) > 0;
    return code("EfmlGetGcuLareIsSupported", card);
}

int EfmlGetGcuLarePortNum(uint32_t card, uint32_t *count)
{
    *count = (uint32_t)number("ports", card);
    return code("EfmlGetGcuLarePortNum", card);
}

/* Every port of a card leads to the place that its key "linked" names. */
int EfmlGetGcuLarePortInfo(uint32_t card, uint32_t port, link_port *info)
{
    char value[128];
    memset(info, 0, sizeof *info);
    info->port = port;
    info->connected = sscanf(of_card("linked", card, value), "%x:%x.%x", &info->remote_bus, &info->remote_dev,
                             &info->remote_func) == 3;
    return code("EfmlGetGcuLarePortInfo", card);
}
