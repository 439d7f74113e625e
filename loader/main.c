/* sluice-loader: a loader of the data plane, or with --scan the process that reads the data set
 * once, or with --draw one that draws what a prediction has found. Started by sluice, never by hand. */
#include "loader/draw_main.h"
#include "loader/loop.h"
#include "loader/scan.h"

#include <string.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--scan") == 0)
            return scan_main(argc, argv);
        else if (strcmp(argv[i], "--draw") == 0)
            return draw_main(argc, argv);
    return loader_run(argc, argv);
}
