#include "meter.h"

#include "report.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct meter total;
static int computing, reading;
static double since_s;

static void change(int *what, int by)
{
    pthread_mutex_lock(&lock);
    double now = now_s(), elapsed_s = now - since_s;
    since_s = now;
    if (computing)
        total.compute_s += elapsed_s;
    if (reading)
        total.read_s += elapsed_s;
    if (computing && reading)
        total.both_s += elapsed_s;
    *what += by;
    pthread_mutex_unlock(&lock);
}

void meter_compute(int by)
{
    change(&computing, by);
}

void meter_read(int by)
{
    change(&reading, by);
}

struct meter meter_now(void)
{
    change(&reading, 0);
    pthread_mutex_lock(&lock);
    struct meter now = total;
    pthread_mutex_unlock(&lock);
    return now;
}
