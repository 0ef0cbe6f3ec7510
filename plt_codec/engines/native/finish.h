/* finish(): sums to outputs by the kernel's finish_as(), each variant compiled for itself. Included by the kernels
 * that have one, behind it. */

TARGET static void finish(const Product *p, const int32_t *sums) {
    const int narrow = p->matrix->narrow;
    switch (p->kind) {
    case TO_QKV: narrow ? finish_as(1, TO_QKV, p, sums) : finish_as(0, TO_QKV, p, sums); break;
    case TO_RESIDUAL: narrow ? finish_as(1, TO_RESIDUAL, p, sums) : finish_as(0, TO_RESIDUAL, p, sums); break;
    case TO_HIDDEN: narrow ? finish_as(1, TO_HIDDEN, p, sums) : finish_as(0, TO_HIDDEN, p, sums); break;
    case TO_LOGITS: narrow ? finish_as(1, TO_LOGITS, p, sums) : finish_as(0, TO_LOGITS, p, sums); break;
    }
}
