/* Version of the deepinfer driver ABI.
 *
 * The major number changes only when an existing field changes meaning; the minor number grows with every
 * field appended to a struct. A host accepts any library of its own major version whose tables are at least
 * as long as the fields it uses (see struct_size in driver.h).
 */
#ifndef DEEPINFER_VERSION_H
#define DEEPINFER_VERSION_H

#define DI_ABI_MAJOR 1
#define DI_ABI_MINOR 0

#endif
