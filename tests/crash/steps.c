/* Runs the kernel's `record_write` or `record_copy` instruction by instruction, and writes down each state of the memory that
 * another process could find if this one were killed there: two little-endian numbers of 8 bytes (how many instructions, how
 * many bytes), then the bytes. For x86-64. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include "record.h"

static uint8_t *memory, *last;
static int64_t size, count;
static volatile int is_stepping;

static void note(void)
{
    int64_t head[2] = {count, size};
    if (memcmp(memory, last, (size_t)size) == 0)
        return;
    memcpy(last, memory, (size_t)size);
    fwrite(head, sizeof head, 1, stdout);
    fwrite(memory, (size_t)size, 1, stdout);
}

static void on_step(int number)
{
    (void)number;
    count++;
    if (is_stepping)
        note();
}

#define STEP(set) __asm__ volatile("pushfq\n\t" set " (%%rsp)\n\tpopfq" ::: "memory", "cc")

/* way, log offset, queue offset, store time, length of topic, length of body, CRC, host in hexadecimal digits */
int main(int argc, char **argv)
{
    static uint8_t topic[255], body[8192], host[20];
    Parts m = {0};
    Span key = {(const uint8_t *)"key", 3};
    int64_t text;
    if (argc != 9)
        return 2;
    memset(topic, 't', sizeof topic), memset(body, 'b', sizeof body);
    m.log_offset = atoll(argv[2]), m.queue_offset = atoll(argv[3]), m.store_ms = m.born_ms = atoll(argv[4]);
    m.topic.p = topic, m.topic.n = atoll(argv[5]), m.body.p = body, m.body.n = atoll(argv[6]);
    m.has_crc = atoi(argv[7]), m.tag = (Span){(const uint8_t *)"tag", 3}, m.keys = &key, m.n_keys = 1;
    for (m.store_host.n = 0; sscanf(argv[8] + 2 * m.store_host.n, "%2hhx", host + m.store_host.n) == 1;)
        m.store_host.n++;
    m.store_host.p = host, m.born_host = m.store_host;
    crc_start();
    text = text_size(&m), size = record_size(&m, text);
    memory = calloc(1, (size_t)size), last = calloc(1, (size_t)size);
    signal(SIGTRAP, on_step);
    if (argv[1][0] == 'c') {
        uint8_t *made = calloc(1, (size_t)size);
        record_write(made, &m, size, text);
        is_stepping = 1;
        STEP("orq $0x100,");
        record_copy(memory, made, size);
    } else {
        is_stepping = 1;
        STEP("orq $0x100,");
        record_write(memory, &m, size, text);
    }
    STEP("andq $~0x100,");
    is_stepping = 0;
    note();
    return 0;
}
